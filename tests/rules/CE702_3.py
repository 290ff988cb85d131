import torch
from torch import nn


# The same operator with register_fake.
@torch.library.custom_op("rules_ce702_good::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@swish.register_fake
def _(x):
    return torch.empty_like(x)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(swish(self.up(x)))


def good():
    return FeedForward().requires_grad_(False), [(torch.randn(2, 4),)] * 2
