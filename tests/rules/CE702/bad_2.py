"""A custom operator that changes its argument in place, called through torch.ops, again without a fake kernel for its result."""
import torch


@torch.library.custom_op("rules_ce702::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    total += value
    return total.mean().clone()


def step(total, value):
    value = value.abs()
    mean = torch.ops.rules_ce702.accumulate(total, value)
    return mean * 2


def make():
    return step, [(torch.zeros(4), torch.randn(4))]


EXPECT = [{"code": "CE702", "kind": "compile_error", "line": "torch.ops.rules_ce702.accumulate(", "severity": "high", "fix": ["register_fake", "fake"]}]
