"""Calls and graphs of a pack: generated again, warmed up, misses explained."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fabricated import Net, details_of, fabricated

from torchproof import packs
from torchproof.packs.deploy import caches
from torchproof.records import schema
from torchproof.runtime.loading import (
    cache_install,
    example_inputs,
    open_model,
    warm_up,
)
from torchproof.runtime.loading.pack_details import CachesDetails, CallInputs
from torchproof.torch_private.inductor import cache_lookups
from torchproof.torch_private.inductor.cache_lookups import Lookup


def again(call: Any, seed: int = 0) -> Any:
    """The call as it is made from its description, which is JSON."""
    written = json.dumps(schema.to_plain(example_inputs.describe(call)))
    return example_inputs.make(schema.build(CallInputs, json.loads(written)), seed)


def details(**changes: Any) -> CachesDetails:
    return schema.build(CachesDetails, details_of(Net(), **changes))


def test_made_calls_are_of_the_same_kind_with_other_values() -> None:
    whole = torch.randn(4, 6, dtype=torch.float64)
    call = {
        "a": whole.t(),
        "b": [torch.tensor([7, 3, 5]), (torch.ones(2, dtype=torch.bool), None)],
        "c": torch.zeros(1, 5).expand(3, 5),
        "d": 1.5,
        "e": torch.randn(2, requires_grad=True),
    }
    made = again(call)
    assert made["a"].stride() == (1, 6) and made["a"].dtype is torch.float64
    assert not torch.equal(made["a"], call["a"])
    assert set(made["b"][0].tolist()) <= {3, 4, 5, 6, 7}
    assert made["b"][1][1] is None and made["d"] == 1.5
    assert made["c"].stride() == (0, 1) and made["c"].shape == (3, 5)
    assert made["e"].requires_grad
    # A graph traced on a view of varying size would reject tensors that are none.
    assert not made["a"]._is_view() and not made["c"]._is_view()
    offsets = again((torch.tensor([0, 3, 9, 20]),), seed=4)[0]
    assert offsets[0] == 0 and offsets[-1] == 20
    assert bool((offsets[1:] >= offsets[:-1]).all())
    assert torch.equal(made["a"], again(call)["a"])
    assert not torch.equal(made["a"], again(call, seed=1)["a"])


def test_a_warm_up_leaves_the_model_as_it_was() -> None:
    model, packed = Net().eval(), details()
    model.inner.weight.grad = torch.ones(4, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    chance = torch.get_rng_state()
    seen = []

    def run(x: torch.Tensor) -> torch.Tensor:
        seen.append((model.training, torch.is_grad_enabled()))
        model.inner.weight.grad = torch.zeros(4, 4)
        return model(x) + torch.rand(1)

    def fails(x: torch.Tensor) -> None:
        raise RuntimeError("no such token")

    assert warm_up.warm(model, run, run, packed) == []
    (note,) = warm_up.warm(None, fails, fails, packed)
    assert "call 0" in note and note.endswith("RuntimeError: no such token")
    with pytest.raises(RuntimeError, match="no such token"):  # eager runs: a defect
        warm_up.warm(None, fails, lambda x: x, packed)
    assert seen == [(True, False)]
    assert not model.training
    assert torch.equal(model.inner.weight.grad, torch.ones(4, 4))
    assert torch.equal(chance, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


# -- misses ----------------------------------------------------------------------------


def test_a_miss_says_why() -> None:
    log = cache_lookups.LookupLog()
    known, packed = Lookup("inductor", "k", hit=True), details(graphs=["k"])
    log.lookups.append(known)
    assert [*open_model._misses(log, packed, None)] == []
    log.lookups.append(replace(known, hit=False))
    log.lookups.append(Lookup("inductor", "other", hit=False))
    log.lookups.append(Lookup("aot_autograd", None, hit=False, why="a custom op"))
    bypassed, rejected, missing = open_model._misses(log, packed, "x is 1 here")
    assert bypassed.endswith(": a custom op")  # which torch does not cache
    assert "guards" in rejected and missing.endswith(": x is 1 here")
    report = {"graphs": 1, "of": 2, "misses": ["threads"], "notes": []}
    with pytest.raises(packs.Unverified, match=r"\b1 of 2\b.*threads"):
        caches._assert_all(report, [])  # such a pack is not made
    caches._assert_all(report | {"graphs": 2, "misses": []}, [])


# -- files -----------------------------------------------------------------------------


def test_lists_of_files_name_the_folder_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "built"
    group = built / "triton" / "0" / "KEY" / "__grp__k.json"
    group.parent.mkdir(parents=True)
    child = {"child_paths": {"k.cubin": str(group.parent / "k.cubin")}}
    group.write_text(json.dumps(child))
    (built / "locks").mkdir()
    (built / "locks" / "x.lock").touch()
    with packs.folder(tmp_path / "pack") as stage:
        assert cache_install.collect(built, stage.path) == 1
        stage.seal(packs.Manifest(kind="deploy", name="n", torchproof="0"))
    packed = tmp_path / "pack" / "caches" / group.relative_to(built)
    assert str(tmp_path) not in packed.read_text()
    for variables in ({}, {"TRITON_CACHE_DIR": str(tmp_path / "own")}):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "here"))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        contents = packs.open_pack(tmp_path / "pack")
        cache_install.install(contents)
        home = Path(variables.get("TRITON_CACHE_DIR", tmp_path / "here/triton/0"))
        listed = json.loads((home / "KEY" / "__grp__k.json").read_text())
        assert listed["child_paths"]["k.cubin"] == str(home / "KEY" / "k.cubin")


def test_several_install_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    pack = fabricated(tmp_path / "pack", Net())

    def install(_: int) -> None:
        contents = packs.open_pack(pack)
        cache_install.install(contents)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(install, range(16)))
    assert os.listdir(tmp_path / "cache" / "ab") == ["code.py"]
