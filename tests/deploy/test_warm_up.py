"""Calls and graphs of a pack: generated again, warmed up, misses explained."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
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
    graph_origin,
    warm_up,
)
from torchproof.runtime.loading.pack_details import CachesDetails, CallInputs
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

SHAPE = "TensorMetadata(dtype=torch.float32, shape=torch.Size([{}]), stride=(1,))"
FACTS = {
    "gm": ("g", "GraphModule()"),
    "example_inputs[0]": ("i", SHAPE.format(4)),
    "fx_kwargs[is_inference]": ("t", "True"),
    "inductor_config[max_fusion_size]": ("m", "64"),
    "cpp_runtime_thread_count": ("c", "2"),
}


MISSES = {
    r"\bmax_fusion_size\b.*\b8\b": {"inductor_config[max_fusion_size]": "8"},
    r"\bthreads\b.*\b16\b.*\b2\b": {"cpp_runtime_thread_count": "16"},
    r"\bshape \(9\)": {"example_inputs[0]": SHAPE.format(9), "gm": "x"},
    r"\bgradients\b": {"fx_kwargs[is_inference]": "False", "gm": "x"},
    r"\btraced graph\b": {"gm": "x"},
}


def test_a_miss_names_what_differs() -> None:
    known = graph_origin.pack_lookups([Lookup("inductor", "k", False, FACTS)])
    for reason, changes in MISSES.items():
        seen = graph_origin.LookupLog()
        facts = FACTS | {name: (f"new {text}", text) for name, text in changes.items()}
        seen.note(Lookup("inductor", "other", False, facts))
        (miss,) = graph_origin.misses(seen, known)
        assert re.search(reason, miss)
    seen = graph_origin.LookupLog()
    seen.note(Lookup("inductor", "k", True, FACTS))
    assert graph_origin.misses(seen, graph_origin.pack_lookups(seen.graphs)) == []
    seen.note(Lookup("aot_autograd", None, False, why="a custom op"))
    (miss,) = graph_origin.misses(seen, [])
    assert miss.endswith(": a custom op")  # which torch does not cache
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
