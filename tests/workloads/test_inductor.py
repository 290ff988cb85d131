"""The cured workloads compute under Inductor what they compute in eager."""

from __future__ import annotations

import platform

import pytest
import torch
from workloads.parity import CURED, distance, results

LIMITS = {
    # bf16 autocast rounds differently where kernels are fused.
    "trainstep": 2e-2,
    # LensNet learns from differences of losses, in which most digits cancel out.
    "megacontext": 5e-4,
}


@pytest.mark.parametrize("kind", ["outputs", "gradients"])
def test_a_wrong_result_is_far_away(kind: str) -> None:
    told = {"device": "cpu", "train": True, "compiled": False}
    eager = results("gpt", **told)
    wrong = {**eager, kind: [torch.zeros_like(each) for each in eager[kind]]}
    assert distance(eager, eager) == 0
    assert distance(wrong, eager) > 0.9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("workload", CURED)
def test_compiled_equals_eager(workload: str, train: bool) -> None:
    if workload == "gpt-flex" and not train and platform.machine() == "aarch64":
        pytest.skip("Inductor has no FlexAttention for this processor")
    told = {"device": "cpu", "train": train}
    eager = results(workload, compiled=False, **told)
    limit = LIMITS.get(workload, 1e-4)
    assert distance(results(workload, compiled=True, **told), eager) < limit
