"""Fixed workloads compute with Inductor what they compute in eager."""

from __future__ import annotations

import platform

import pytest
import torch
from workloads.parity import distance, results

# Training compares outputs and gradients. FlexAttention has no backward on a CPU. With
# bf16 autocast, trainstep rounds differently in fused kernels.
CASES = [
    ("gpt-flex", False, 1e-4),
    ("arrcoc", True, 1e-4),
    ("trainstep", True, 2e-2),
]


@pytest.mark.parametrize("kind", ["outputs", "gradients"])
def test_wrong_result_is_far_away(kind: str) -> None:
    eager = results("gpt", device="cpu", train=True, compiled=False)
    wrong = {**eager, kind: [torch.zeros_like(each) for each in eager[kind]]}
    assert distance(eager, eager) == 0
    assert distance(wrong, eager) > 0.9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("workload", "train", "limit"), CASES)
def test_compiled_equals_eager(workload: str, train: bool, limit: float) -> None:
    if workload == "gpt-flex" and platform.machine() == "aarch64":
        pytest.skip("Inductor has no FlexAttention for this processor")
    eager, compiled = (
        results(workload, device="cpu", train=train, compiled=compiled)
        for compiled in (False, True)
    )
    assert distance(compiled, eager) < limit
