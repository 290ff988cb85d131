"""A key/value cache kept as a growing Python list: one recompile for each token."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.kv = nn.Linear(4, 4)

    def forward(self, token, past):
        keys = torch.cat([*past, self.kv(token)])
        return (token @ keys.t()).softmax(-1)


def make():
    past = [torch.randn(1, 4) for _ in range(6)]
    return Decoder(), [(torch.randn(1, 4), past[:n]) for n in (2, 3, 4, 5)]


EXPECT = [{"code": "RC212", "kind": "recompile", "line": "torch.cat([*past, self.kv(token)])", "fix": ["tensor", "stack", "fixed", "static", "preallocate", "length"]}]
