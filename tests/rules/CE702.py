import torch


# A custom operator without a fake kernel.
@torch.library.custom_op("rules_ce702::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def feed_forward(x):
    return swish(x * 2) + 1  # run: CE702


def bad():
    return feed_forward, [(torch.randn(2, 4),)]


# The same operator with register_fake.
@torch.library.custom_op("rules_ce702_good::swish", mutates_args=())
def known_swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


known_swish.register_fake(torch.empty_like)


def known_feed_forward(x):
    return known_swish(x * 2) + 1


def good():
    return known_feed_forward, [(torch.randn(2, 4),)] * 2
