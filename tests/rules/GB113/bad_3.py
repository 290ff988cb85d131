"""A for loop over an iterator that was made outside skips the whole function."""
import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, tensors):
        x = self.fc(x)
        for other in tensors:
            x = x + other
        return x


def make():
    others = [torch.randn(4), torch.randn(4)]
    return Mixer(), [(torch.randn(2, 4), map(torch.relu, others))]


EXPECT = [{"code": "GB113", "kind": "skipped_frame", "line": "for other in tensors:", "severity": "high", "fix": ["list", "tuple", "outside"]}]
