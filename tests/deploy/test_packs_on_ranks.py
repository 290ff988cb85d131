"""One pack on two real ranks: refused on one of them, damaged, another, missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from commands import on_ranks
from commands import torchproof as command
from fabricated import Net, details_of, fabricated, recipe_of
from torch import Tensor, nn

import torchproof
from torchproof.records import UserError
from torchproof.runtime import agreement, production
from torchproof.targets import tensor_parallel
from torchproof.torch_private import cache_lookups

RANKS = 2
FAULTY = 1  # the rank with the fault


class Joined(Net):
    """A model whose graph has a collective of both ranks."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        dist.all_reduce(y)
        return y


def made(kind: type[Net]) -> Net:
    torch.manual_seed(0)
    return kind().eval()


def pack_of(model: Net, folder: Path, name: str, **changes: Any) -> str:
    """The same pack on both ranks; the first one makes it."""
    path = folder / name
    if dist.get_rank() == 0:
        [call] = details_of(Net())["calls"]
        call["state"] = {"training": False, "others": []}
        fabricated(path, model, calls=[call], **changes)
    dist.barrier()
    return str(path)


def damaged_here(path: str) -> str:
    """A copy for the faulty rank with an edited file; the others keep theirs."""
    if dist.get_rank() == FAULTY:
        copy = f"{path}-here"
        shutil.copytree(path, copy)
        file = Path(copy, "caches", "ab", "code.py")
        file.write_text(file.read_text().replace("1", "2"))
        path = copy
    dist.barrier()
    return path


def answer(model: nn.Module) -> Tensor:
    x = torch.full((3, 4), 1.0 + dist.get_rank())
    with torch.no_grad():
        result: Tensor = model(x)
    return result


def assert_like_eager(model: nn.Module, eager: nn.Module) -> None:
    for _ in range(2):
        torch.testing.assert_close(answer(model), answer(eager))


def assert_status_names(model: nn.Module, text: str) -> None:
    """The status of the rank without the fault says what the other one refused."""
    status = torchproof.status(model)
    assert status.pack is not None
    reasons = f"{status.pack['why_not']} {status.pack['ranks']}"
    assert text in reasons and text in str(status)
    if dist.get_rank() != FAULTY:
        assert any(f"rank {FAULTY}" in line for line in status.pack["ranks"])


# -- each of these runs on both ranks --------------------------------------------------


def all_ranks_use_it(folder: Path) -> None:
    for kind, has_some in ((Net, False), (Joined, True)):
        model = made(kind)
        changes = {"collectives": has_some, "world_size": RANKS if has_some else 1}
        path = pack_of(model, folder, f"used-{has_some}", **changes)
        loaded = torchproof.load(path, model)
        status = torchproof.status(loaded)
        assert status.pack is not None and status.pack["used"], status
        assert status.pack["ranks"] == [] and len(status.compilations) == 1
        assert_like_eager(loaded, made(kind))
        status = torchproof.status(loaded)
        assert not status.fallbacks and len(status.compilations) == 1


def a_damaged_pack_with_collectives(folder: Path) -> None:
    """All ranks run eager."""
    model = made(Joined)
    path = pack_of(model, folder, "joined", collectives=True, world_size=RANKS)
    path = damaged_here(path)
    loaded = torchproof.load(path, model)
    assert_like_eager(loaded, made(Joined))
    assert_status_names(loaded, "sha256")
    assert torchproof.status(loaded).strategy == "eager"
    assert [item.kind for item in torchproof.status(loaded).fallbacks] == ["pack"]
    with pytest.raises(torchproof.PackRefused):
        torchproof.load(path, made(Joined), strict=True)


def a_damaged_pack_without_collectives(folder: Path) -> None:
    """Only the rank with the damage goes without it; nobody waits in a warm-up."""
    model = made(Net)
    path = pack_of(model, folder, "apart", collectives=False)
    loaded = torchproof.load(damaged_here(path), model)
    assert_status_names(loaded, "sha256")
    status = torchproof.status(loaded)
    assert status.pack is not None
    assert status.pack["used"] == (dist.get_rank() != FAULTY)
    assert not status.compilations
    assert_like_eager(loaded, made(Net))
    assert torchproof.status(loaded).compilations


def packs_that_are_not_for_these_ranks(folder: Path) -> None:
    """Each rank has another one, or both have one for more ranks."""
    for kind, has_some in ((Net, False), (Joined, True)):
        model = made(kind)
        more = {"collectives": has_some, "world_size": RANKS if has_some else 1}
        paths = [
            pack_of(model, folder, f"{has_some}-{n}", strategy=f"full {n}", **more)
            for n in range(RANKS)
        ]
        loaded = torchproof.load(paths[dist.get_rank()], model)
        status = torchproof.status(loaded)
        assert status.pack is not None and status.pack["used"] is not has_some
        assert "(different)" in str(status.pack["ranks"])
        assert (status.strategy == "eager") is has_some and not status.compilations
        assert_like_eager(loaded, made(kind))
    model = made(Net)
    path = pack_of(model, folder, "four", collectives=True, world_size=4)
    status = torchproof.status(torchproof.load(path, model))
    assert status.pack is not None and "4 ranks" in status.pack["why_not"]


def a_pack_that_one_rank_lacks(folder: Path) -> None:
    model = made(Joined)
    path = pack_of(model, folder, "lacking", collectives=True, world_size=RANKS)
    loaded = torchproof.load(path if dist.get_rank() != FAULTY else "none", model)
    assert_like_eager(loaded, made(Joined))
    assert_status_names(loaded, "there is no none")
    with pytest.raises(UserError, match="no pack"):
        torchproof.load("nowhere", model)


def a_rank_that_loads_too_late(folder: Path) -> None:
    """No rank uses the pack, for which the first rank does not wait any more."""
    model, is_late = made(Joined), dist.get_rank() == FAULTY
    path = pack_of(model, folder, "late", collectives=True, world_size=RANKS)
    if is_late:
        dist.barrier()
        loaded = torchproof.load(path, model)
    else:
        with mock.patch.object(agreement, "LONGEST_WAIT_S", 0.3):
            loaded = torchproof.load(path, model)
        dist.barrier()
    status = torchproof.status(loaded)
    assert status.pack is not None and not status.pack["used"], status
    assert status.strategy == "eager" and not status.compilations
    assert f"rank {FAULTY} (no answer)" in status.pack["why_not"]
    assert_like_eager(loaded, made(Joined))


def a_model_inside_ddp(folder: Path) -> None:
    """The warm-up of DDP's module starts no collective of DDP."""
    model = made(Net)
    path = pack_of(model, folder, "ddp", collectives=False, train=True)
    ddp = nn.parallel.DistributedDataParallel(model)
    loaded = torchproof.load(damaged_here(path), ddp)
    assert loaded is ddp
    status = torchproof.status(loaded)
    assert status.pack is not None
    assert status.pack["used"] == (dist.get_rank() != FAULTY), status
    ddp(torch.ones(3, 4) + dist.get_rank()).sum().backward()
    eager = nn.parallel.DistributedDataParallel(made(Net))
    eager(torch.ones(3, 4) + dist.get_rank()).sum().backward()
    for ours, theirs in zip(ddp.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def a_recipe_that_one_rank_refuses(folder: Path) -> None:
    """It runs eager from the start, and the others learn it before the deadline."""
    model = made(Joined)
    other = nn.Linear(2, 2)
    recipe = recipe_of(model if dist.get_rank() != FAULTY else other)
    compiled = torchproof.compile(model, recipe=recipe)
    assert_like_eager(compiled, made(Joined))
    status = torchproof.status(compiled)
    assert status.strategy == "eager" or status.fallbacks
    assert status.ranks is not None
    if dist.get_rank() != FAULTY:
        assert "recipe" in str(status)


def main(names: str, folder: Path) -> None:
    """Each of the ranks that torch's launcher starts, with a cache of its own."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"cache-{os.environ['RANK']}")
    dist.init_process_group("gloo")
    plain = production.compile

    def compile(model: Any, *, recipe: Any = None, **options: Any) -> Any:
        """Generates no code, also for a model whose pack is refused."""
        options = options if recipe is not None else {"backend": "eager"} | options
        return plain(model, recipe=recipe, **options)

    production.compile = compile  # type: ignore[assignment]
    for name in names.split(","):
        globals()[name](folder)
        dist.barrier()
    dist.destroy_process_group()


def run_ranks(folder: Path, *names: str) -> None:
    variables = {"GLOO_SOCKET_IFNAME": "lo", "TORCHPROOF_DEADLINE_S": "120"}
    done = on_ranks(__file__, ",".join(names), folder, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr


DIVIDED = """
import torch
from torch import nn


class Divided(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(self.up(self.words(x)).relu())


tensor_parallel_plan = {"up": "colwise", "down": "rowwise"}


def make():
    return Divided().eval(), [(torch.randint(0, 10, (3, 4)),)]
"""


def a_divided_model(folder: Path) -> None:
    """The code of rank 0 runs on both ranks, each with its part of the layers."""
    sys.path.insert(0, str(folder))
    from divided import (  # type: ignore[import-not-found]
        Divided,
        tensor_parallel_plan,
    )
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(3)
    eager = Divided().eval()
    model = Divided().eval()
    model.load_state_dict(eager.state_dict())
    mesh = init_device_mesh("cpu", (RANKS,))
    tensor_parallel.divide(model, mesh, tensor_parallel_plan)
    loaded = torchproof.load(folder / "divided-pack", model)
    status = torchproof.status(loaded)
    assert status.pack is not None and status.pack["used"], status
    words = torch.arange(12).reshape(3, 4) % 10
    with torch.no_grad():
        torch.testing.assert_close(loaded(words), eager(words))
    status = torchproof.status(loaded)
    assert status.pack is not None and status.pack["graphs"] == 1, status
    assert not status.pack["misses"] and not status.fallbacks, status
    assert sum(each.in_child for each in status.compilations) == 0
    assert not any(each.kept for each in status.compilations)


SITUATIONS = (
    *(all_ranks_use_it, a_damaged_pack_with_collectives),
    *(a_damaged_pack_without_collectives, packs_that_are_not_for_these_ranks),
    *(a_pack_that_one_rank_lacks, a_rank_that_loads_too_late, a_model_inside_ddp),
    *(a_recipe_that_one_rank_refuses, a_divided_model),
)


@pytest.mark.slow
def test_packs_on_two_ranks(tmp_path: Path) -> None:
    """A pack that two ranks build, then everything above in one launch."""
    (tmp_path / "divided.py").write_text(DIVIDED)
    done = command(
        *("pack", "divided.py:make", "--for", "deploy", "--ranks", "2", "-q"),
        *("--wrap", "tp", "-o", "divided-pack"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    run_ranks(tmp_path, *(each.__name__ for each in SITUATIONS))


def test_cache_keys_contain_a_mesh_without_its_rank() -> None:
    """As torch makes them, they fit one process only."""
    from torch._inductor import codecache
    from torch.distributed.device_mesh import DeviceMesh

    def key(rank: int, name: str = "0") -> str:
        mesh: Any = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=rank)
        mesh._dim_group_names = [name]
        graph = torch.fx.GraphModule({}, torch.fx.Graph())
        pickler = codecache.FxGraphCachePickler(graph)
        return str(pickler.get_hash(mesh))

    assert key(0) != key(1)
    with cache_lookups.keys_for_ranks(2):
        assert key(0) == key(1)
        assert key(0) != key(0, name="another")
    assert key(0) != key(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
