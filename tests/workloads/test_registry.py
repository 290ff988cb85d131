"""All workloads: sizes, parameters, calls, and what the command line says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import torchproof

from torchproof.records.run import UserError
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import load, parse
from torchproof.targets.workloads import WORKLOADS

# The other sizes of each module, which its variants share, are built in slow tests.
QUICK = {"tiny", "base", "large"}
EVERY = [
    pytest.param(name, size, marks=[] if size in QUICK else [pytest.mark.slow])
    for name, workload in WORKLOADS.items()
    for size in workload.sizes
    if size in QUICK or name in ("gpt", "nanovlm")
]

# Parameters by the documents of the systems, in millions.
DOCUMENTED = {
    ("nanovlm", "debug"): 19.63,
    ("nanovlm", "large"): 145.7,
    ("nanovlm", "vanilla"): 460.1,
    ("gpt", "40b"): 39_484.014592,
    ("megacontext", "base"): 185.6 + 2 * 16.52,
}


def parameters(fn: object) -> int:
    """The parameters of a module, or of the one module a step or session holds."""
    model = fn if isinstance(fn, torch.nn.Module) else fn.model  # type: ignore[attr-defined]
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_parameters_are_those_of_the_registry(name: str, size: str) -> None:
    workload = WORKLOADS[name]
    fn, _ = workload.make(size=size, device="meta", train=not workload.fp8)
    assert parameters(fn) == workload.sizes[size]


@pytest.mark.parametrize(("name", "size"), DOCUMENTED)
def test_parameters_are_those_of_the_documents(name: str, size: str) -> None:
    documented, count = DOCUMENTED[name, size], WORKLOADS[name].sizes[size] / 1e6
    assert count == pytest.approx(documented, rel=2e-3)


def test_target_of_a_variant_is_made_with_its_arguments() -> None:
    model: object = load(parse("workload:gpt-flex")).fn
    assert model.attention == "flex" and model.window == 64  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WORKLOADS)
def test_make_is_deterministic(name: str) -> None:
    train = not WORKLOADS[name].fp8
    first, second = (WORKLOADS[name].make(train=train) for _ in range(2))
    for one, other in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(one, other)


def tensors(made: tuple[object, list[object]]) -> list[torch.Tensor]:
    """The weights, and the tensors of all calls."""
    fn, calls = made
    model = fn if isinstance(fn, torch.nn.Module) else fn.model  # type: ignore[attr-defined]
    leaves = torch.utils._pytree.tree_leaves(calls)
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert inputs
    return [*model.parameters(), *inputs]


def test_list_names_sizes_and_parameters(tmp_path: Path) -> None:
    done = torchproof("check", "--list", cwd=tmp_path)
    assert done.returncode == 0
    entries = done.stdout.split("workload:")[1:]
    assert [entry.split("\n")[0] for entry in entries] == sorted(WORKLOADS)
    [nanovlm] = [entry for entry in entries if entry.startswith("nanovlm\n")]
    sizes = (
        "tiny 223.2k (default), debug 19.6M, large 145.7M (default on a GPU), vanilla"
    )
    assert f"sizes: {sizes}" in " ".join(nanovlm.split())
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert WORKLOADS["nanovlm"].summary in nanovlm
    done = torchproof("check", "--list", "--format", "json", cwd=tmp_path)
    rows = json.loads(done.stdout)
    assert {row["target"]: row["sizes"] for row in rows} == {
        f"workload:{name}": dict(workload.sizes) for name, workload in WORKLOADS.items()
    }


@pytest.mark.parametrize(
    ("train", "what"), [(False, r"weights .*\b1 GiB"), (True, r"gradients .*\b2 GiB")]
)
def test_size_beyond_memory_is_refused(
    train: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(available=2**29)
    monkeypatch.setattr(calls.psutil, "virtual_memory", lambda: room)
    job = Job(parse("workload:gpt"), size="small", device="cpu", train=train)
    with pytest.raises(UserError, match=rf"{what}\b.*\bcpu .*\b0 GiB"):
        calls.resolved(job)
    quantised = replace(job, target=parse("workload:gpt-fp8"), train=False)
    assert calls.resolved(quantised) == quantised  # a quarter of the memory
    room.available = 2**40
    assert calls.resolved(job) == job


@pytest.mark.parametrize("name", WORKLOADS)
def test_batch_applies_to_every_call(name: str) -> None:
    modes = (False,) if WORKLOADS[name].fp8 else (False, True)
    for train in (True,) if name.startswith("megacontext") else modes:
        _, calls = WORKLOADS[name].make(batch=3, train=train)
        for call in calls:
            first = next(iter(call.values())) if isinstance(call, dict) else call[0]
            assert first.shape[0] == 3


@pytest.mark.parametrize("name", ["megacontext", "megacontext-original"])
def test_session_has_no_batch(name: str) -> None:
    make = WORKLOADS[name].make
    assert make(batch=1)
    with pytest.raises(ValueError, match=r"\bbatch 3\b"):
        make(batch=3)
    with pytest.raises(ValueError, match="sequence 16: "):
        make(sequence=16, train=True)
