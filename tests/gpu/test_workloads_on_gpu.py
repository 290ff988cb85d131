"""The reference workloads on a GPU, at the sizes that are meant for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import torchproof
from workloads.parity import FIXED, distance, results

from torchproof.targets.workloads import WORKLOADS, megacontext, nanovlm

pytestmark = pytest.mark.gpu

STEPS = 20
# FP8 weights have no gradients.
WAYS = [
    (name, train)
    for name in FIXED
    for train in (False, True)
    if not (train and WORKLOADS[name].fp8)
]


def check(workload: str, *flags: str, folder: Path) -> dict[str, Any]:
    common = ("--effort", "quick", "--format", "json", "--fail-on", "never", "-q")
    done = torchproof("check", f"workload:{workload}", *common, *flags, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    run: dict[str, Any] = json.loads(done.stdout)
    assert run["environment"]["device"] == "cuda"
    assert run["environment"]["size"] == WORKLOADS[workload].gpu_size
    return run


@pytest.mark.parametrize("workload", FIXED)
def test_fixed_is_clean(workload: str, tmp_path: Path) -> None:
    train = [] if WORKLOADS[workload].fp8 else ["--train"]
    run = check(workload, *train, folder=tmp_path)
    # An advisory is about the installed torch.
    found = [f for f in run["findings"] if not f["code"].startswith("AD")]
    assert not [f for f in found if f["severity"] != "low"]
    assert run["counts"]["compiled_calls"] == run["counts"]["calls"]


@pytest.mark.filterwarnings("ignore")  # Dynamo asks every tensor for .grad
@pytest.mark.parametrize(
    ("make", "size", "optimizer"),
    [
        (nanovlm.make, "large", lambda m: torch.optim.AdamW(m.parameters(), lr=3e-4)),
        (megacontext.make, "base", megacontext.optimizer),
    ],
    ids=["nanovlm", "megacontext"],
)
def test_it_trains_compiled(
    make: Callable[..., Any], size: str, optimizer: Callable[[Any], Any]
) -> None:
    model, calls = make(size, device="cuda", train=True)
    calls = calls[:5]  # so that each is seen four times
    itself = getattr(type(model), "compiles_itself", False)
    compiled, steps = model if itself else torch.compile(model), optimizer(model)
    losses = []
    for number in range(STEPS):
        call = calls[number % len(calls)]
        with torch.compiler.set_stance("fail_on_recompile" if number else "default"):
            output = compiled(**call) if isinstance(call, dict) else compiled(*call)
            output.loss.backward()
        steps.step()
        steps.zero_grad()
        losses.append(output.loss.item())
    rounds = [losses[: len(calls)], losses[-len(calls) :]]
    first, last = (sum(each) / len(each) for each in rounds)
    assert last < 0.95 * first


@pytest.mark.filterwarnings("ignore")  # what torch says about speed
@pytest.mark.parametrize(("workload", "train"), WAYS)
def test_compiled_equals_eager(workload: str, train: bool) -> None:
    if workload == "gpt-flex" and train and torch.__version__ < (2, 13):
        pytest.xfail("torch 2.11 guards on the batch in FlexAttention's backward")
    options: dict[str, Any] = {"device": "cuda", "train": train}
    eager = results(workload, compiled=False, **options)
    compiled = results(workload, compiled=True, **options)
    apart = distance(compiled, eager)
    if apart < (0.1 if train else 0.05):  # bf16, rounded in other places
        return
    # Rounding may decide which patches are selected: neither is then the right one.
    # The program is right if both agree where rounding decides nothing.
    options["dtype"] = torch.float64
    exact = results(workload, compiled=False, **options)
    assert distance(results(workload, compiled=True, **options), exact) < 1e-5
    errors = distance(compiled, exact), distance(eager, exact)
    assert errors[0] < 2 * errors[1]
