"""A marked length is added to a position table of fixed size."""
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
    torch._dynamo.mark_dynamic(tokens, 1)
    return Positions(), [(tokens,)]


EXPECT = [{"code": "DS601", "kind": "specialization", "line": "tokens.tanh() + self.table", "fix": ["maybe_mark_dynamic", "mark_dynamic", "slice", "[:"]}]
