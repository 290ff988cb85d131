import torch
import torch._dynamo
from torch import nn


# The batch is marked dynamic, but a test for equality pins it to one value.
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if x.shape[0] == 8:  # <- DS601
            x = x * 2
        return x.relu()


def bad():
    x = torch.randn(8, 4)
    torch._dynamo.mark_dynamic(x, 0)
    return Head(), [(x,)]


# A marked length is added to a position table of fixed size.
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 4))

    def forward(self, tokens):
        return tokens.tanh() + self.table  # <- DS601


def bad_2():
    tokens = torch.randn(2, 6, 4)
    torch._dynamo.mark_dynamic(tokens, 1)
    return Positions(), [(tokens,)]


# A range given with mark_dynamic does not fit the code, which needs at least five.
def chunked(x):
    if x.shape[0] > 4:  # <- DS601
        return x[:4].sum(0) + x[4:].sum(0)
    return x.sum(0)


def bad_3():
    x = torch.randn(8, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
    return chunked, [(x,)]


# The position table is cut to the length at hand.
class Positions2(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 4))

    def forward(self, tokens):
        return tokens.tanh() + self.table[: tokens.shape[1]]


def good():
    inputs = [torch.randn(2, n, 4) for n in (6, 7, 9)]
    for tokens in inputs:
        torch._dynamo.mark_dynamic(tokens, 1)
    return Positions2(), [(tokens,) for tokens in inputs]
