import torch
from torch import nn


# A custom operator without a fake kernel.
@torch.library.custom_op("rules_ce702::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(swish(self.up(x)))  # <- CE702


def bad():
    return FeedForward().requires_grad_(False), [(torch.randn(2, 4),)]
