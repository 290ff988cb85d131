import torch


# A custom operator that changes its argument in place, called through torch.ops.
@torch.library.custom_op("rules_ce702::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    total += value
    return total.mean().clone()


def step(total, value):
    value = value.abs()
    mean = torch.ops.rules_ce702.accumulate(total, value)  # <- CE702
    return mean * 2


def bad_2():
    return step, [(torch.zeros(4), torch.randn(4))]
