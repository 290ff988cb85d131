"""The first call has size 1, so 1 is baked in, although the dimension is marked as dynamic."""
import torch
import torch._dynamo
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, tokens):
        return self.fc(tokens).relu()


def make():
    inputs = [torch.randn(2, n, 4) for n in (1, 5, 6)]
    for tokens in inputs:
        torch._dynamo.maybe_mark_dynamic(tokens, 1)
    return Decoder(), [(tokens,) for tokens in inputs]


EXPECT = [{"code": "RC202", "kind": "recompile", "line": "def forward(self, tokens):", "fix": ["mark_unbacked", "warm up", "first call", "size 1", "0/1"]}]
