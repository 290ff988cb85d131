"""maybe_mark_dynamic is only a hint: adding a table of fixed size drops it without a word."""
import torch
import torch._dynamo
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 4))

    def forward(self, tokens):
        return tokens.tanh() + self.table


def make():
    tokens = torch.randn(2, 6, 4)
    torch._dynamo.maybe_mark_dynamic(tokens, 1)
    return Positions(), [(tokens,)] * 2


EXPECT = [{"code": "DS603", "kind": "specialization", "line": "tokens.tanh() + self.table", "fix": ["slice", "[:", "mark_dynamic", "static"]}]
