"""How programs compile, capture and script: what rules read in tests/rules is true."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._dynamo.utils
import torch._functorch.config
import torch._inductor.config
import torch.compiler.config
from rule_programs import FOLDER
from torch import nn

from torchproof.checking.rules import settings as known_settings

IGNORED = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{each}") for each in IGNORED]


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    before = torch._dynamo.config.suppress_errors
    yield
    torch._dynamo.config.suppress_errors = before
    torch._dynamo.reset()


def test_wrapping_again_finds_what_was_compiled_unless_the_backend_is_another() -> None:
    seen: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(1)
        return graph.forward

    net, x = nn.Linear(4, 4), torch.ones(2, 4)
    for _ in range(4):
        torch.compile(net, backend=backend)(x)
    assert len(seen) == 1
    torch._dynamo.reset()
    for _ in range(4):
        torch.compile(net, backend=lambda graph, inputs: backend(graph, inputs))(x)
    assert len(seen) == 5


def test_variables_that_are_set_late_have_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dynamo, inductor = torch._dynamo.config, torch._inductor.config

    def read() -> list[object]:
        return [
            *(dynamo.disable, dynamo.suppress_errors, dynamo.verbose),
            *(inductor.max_autotune, inductor.compile_threads, inductor.fx_graph_cache),
            str(torch._logging._internal.log_state.artifact_names),
        ]

    before = read()
    for name in (*known_settings.AT_IMPORT, *known_settings.AT_COMPILE):
        monkeypatch.setenv(name, "graph_breaks" if name == "TORCH_LOGS" else "0")
        assert read() == before
        monkeypatch.setenv(name, "1")
        assert read() == before
    assert len(known_settings.AT_COMPILE) == 6 == len(before) - 1


def test_the_known_settings_are_those_of_the_installed_torch() -> None:
    known = known_settings.settings()
    assert {"torch._dynamo.config", "torch._inductor.config"} <= known.keys()
    for module, names in known.items():
        installed = set(sys.modules[module]._config)  # type: ignore[attr-defined]
        assert installed <= names, "add the names to rules/settings.json"


def test_settings_that_do_not_exist_raise() -> None:
    bad = program("CF107")
    assert torch._dynamo.config.suppress_errors is True
    for raises in (bad.cache, bad.graphs, bad.patched, bad.grouped):
        with pytest.raises(AttributeError):
            raises()
    with pytest.raises(RuntimeError, match="optimization option"):
        bad.option(torch.relu)
    assert bad.ignored(lambda x: x + 1)(torch.ones(2)).sum() == 4
    bad.known()


def test_a_trace_answers_for_its_example_alone() -> None:
    traced, x = program("TS101"), -torch.ones(3)
    with pytest.warns(torch.jit.TracerWarning):
        gated = traced.gated(torch.ones(3))
    assert not torch.equal(gated(x), traced.gate(x))
    with pytest.warns(torch.jit.TracerWarning):
        scaled = traced.scaled(torch.ones(3))
    assert not torch.equal(scaled(2 - x), traced.Scale()(2 - x))
    dropped = traced.dropped(torch.ones(256)).eval()
    assert (dropped(torch.ones(256)) == 0).any()
    assert torch.equal(traced.compiled()(x), traced.gate(x))


def test_torch_jit_script_refuses_what_is_marked() -> None:
    scripted = program("TS103")
    for script in scripted.functions():
        with pytest.raises((RuntimeError, torch.jit.frontend.NotSupportedError)):
            script()
    assert scripted.compiled(torch.ones(2)).sum() == 8


def test_torch_jit_warns_that_it_is_deprecated() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match="deprecated"):
        torch.jit.script(nn.Linear(2, 2))


def test_torchscript_and_torch_compile_do_not_mix() -> None:
    mixed, model, x = program("TS105"), nn.Linear(2, 2), torch.ones(1, 2)
    for raises in (lambda: mixed.script_of(model), lambda: mixed.trace_of(model, x)):
        with pytest.raises((RuntimeError, ValueError)):
            raises()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    mixed.of_trace(model, x)(x)
    assert not torch._dynamo.utils.counters["stats"].get("unique_graphs")
    try:
        mixed.of_script(model)(x)
    except RuntimeError as error:
        assert "torch.jit" in str(error)
    assert not torch._dynamo.utils.counters["stats"].get("unique_graphs")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    from torch import distributed

    rendezvous = f"file://{tmp_path / 'group'}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


def test_what_ddp_and_fsdp_do_to_torch_compile(alone: None) -> None:
    from torch.distributed import fsdp

    x = torch.ones(2, 4)
    ddp = nn.parallel.DistributedDataParallel(Block())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(ddp, backend="eager", fullgraph=True)(x)

    def graphs(model: nn.Module) -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(model, backend="eager")(x)
        return torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)

    assert graphs(ddp) > 0
    flat = fsdp.FullyShardedDataParallel(Block(), device_id=torch.device("cpu"))
    assert graphs(flat) == 0
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    for inside in (False, True):
        torch._dynamo.reset()
        model = nn.Sequential(Block(), Block()) if inside else Block()
        for block in model if inside else ():
            fsdp.fully_shard(block, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        if inside:
            with pytest.raises(torch._dynamo.exc.Unsupported):
                compiled(x)
        else:
            compiled(x)


@pytest.mark.gpu
def test_kept_outputs_are_overwritten() -> None:
    batches = [torch.rand(8, 8, device="cuda") for _ in range(4)]
    kept = program("CG301_read")
    for overwritten, given in ((kept.listed, batches), (kept.fed_back, batches[0])):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="overwritten"):
            overwritten(given)
    torch._dynamo.reset()
    outs, _ = kept.copied(batches)
    assert torch.allclose(outs, torch.stack([(b @ b).relu() for b in batches]))
