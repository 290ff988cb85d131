"""All workloads: sizes, parameters, calls, and what the command line says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from torchproof.cli.verbs import main
from torchproof.records.run import UserError
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import load, parse
from torchproof.targets.workloads import WORKLOADS
from torchproof.torch_private import trees

# The other sizes of each module, which its variants share, are built in slow tests.
QUICK = {"tiny", "base", "large"}
EVERY = [
    pytest.param(name, size, marks=[] if size in QUICK else [pytest.mark.slow])
    for name, workload in WORKLOADS.items()
    for size in workload.sizes
    if size in QUICK or name in ("gpt", "nanovlm")
]


def parameters(fn: object) -> list[torch.nn.Parameter]:
    """The parameters of a module, or of the one module that a step holds."""
    model = fn if isinstance(fn, torch.nn.Module) else fn.model  # type: ignore[attr-defined]
    return list(model.parameters())


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_parameters_are_those_of_the_registry(name: str, size: str) -> None:
    workload = WORKLOADS[name]
    fn, _ = workload.make(size=size, device="meta", train=not workload.fp8)
    assert sum(p.numel() for p in parameters(fn)) == workload.sizes[size]


def test_target_of_a_variant_is_made_with_its_arguments() -> None:
    model: object = load(parse("workload:gpt-flex")).fn
    assert model.attention == "flex" and model.window == 64  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WORKLOADS)
def test_make_is_deterministic(name: str) -> None:
    train = not WORKLOADS[name].fp8
    first, second = (
        [*parameters(fn), *trees.tensors(calls)]
        for fn, calls in (WORKLOADS[name].make(train=train) for _ in range(2))
    )
    assert all(map(torch.equal, first, second)) and len(first) == len(second)


def test_list_names_sizes_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    text = capsys.readouterr().out
    entries = text.split("workload:")[1:]
    assert [entry.split("\n")[0] for entry in entries] == sorted(WORKLOADS)
    [nanovlm] = [entry for entry in entries if entry.startswith("nanovlm\n")]
    sizes = "sizes: tiny 223.2k (default), debug 19.6M, large 145.7M (default on a GPU)"
    assert (
        sizes in " ".join(nanovlm.split()) and WORKLOADS["nanovlm"].summary in nanovlm
    )
    assert max(len(line) for line in text.splitlines()) <= 80
    assert main(["check", "--list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
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
