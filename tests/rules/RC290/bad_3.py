"""A Python list of past states grows with every token."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, token, past):
        state = self.fc(token)
        for older in past:
            state = state + older
        return state


def make():
    states = [torch.randn(4) for _ in range(12)]
    return Decoder(), [(torch.randn(4), states[:n]) for n in range(12)]


EXPECT = [{"code": "RC290", "kind": "recompile_limit", "line": "for older in past:", "severity": "high", "fix": ["tensor", "stack", "preallocate", "static", "fixed", "length"]}]
