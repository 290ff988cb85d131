"""A custom operator without a fake kernel."""
import torch
from torch import nn


@torch.library.custom_op("rules_ce702::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(swish(self.up(x)))


def make():
    return FeedForward().requires_grad_(False), [(torch.randn(2, 4),)]


EXPECT = [{"code": "CE702", "kind": "compile_error", "line": "self.down(swish(self.up(x)))", "severity": "high", "fix": ["register_fake", "fake"]}]
