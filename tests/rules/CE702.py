import torch


# A custom operator without a fake kernel.
@torch.library.custom_op("rules_ce702::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def feed_forward(x):
    return swish(x * 2) + 1  # <- CE702


def bad():
    return feed_forward, [(torch.randn(2, 4),)]


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


# The same operator with register_fake.
@torch.library.custom_op("rules_ce702_good::swish", mutates_args=())
def known_swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


known_swish.register_fake(torch.empty_like)


def known_feed_forward(x):
    return known_swish(x * 2) + 1


def good():
    return known_feed_forward, [(torch.randn(2, 4),)] * 2
