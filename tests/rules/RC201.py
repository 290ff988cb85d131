import torch
import torch._dynamo
from torch import nn

OPTIONS = {
    "bad": {"compile": {"dynamic": False}},
    "good_3": {"compile": {"dynamic": True}},
}


# Every sequence length compiles its own graph.
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.fc = nn.Linear(8, 8)

    def forward(self, ids):  # <- RC201
        return self.fc(self.embed(ids)).mean(1)


def bad():
    return Encoder(), [(torch.zeros(2, length, dtype=torch.long),) for length in (5, 6, 7, 8)]


# The default.
def scores(q, k):  # <- RC201
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)


def bad_2():
    return scores, [(torch.randn(n, 3, 8), torch.randn(n, 3, 8)) for n in (4, 6, 9, 5, 7)]


# One recompile, but a Python loop over the sequence gives each length its own graph.
def scan(sequence):  # <- RC201
    state = torch.zeros(3)
    for step in range(sequence.shape[0]):  # <- DS603
        state = state * 0.9 + sequence[step]
    return state


def bad_4():
    return scan, [(torch.randn(n, 3),) for n in (4, 6)]


# The changing dimension is marked before the first call.
def good():
    inputs = [torch.zeros(2, length, dtype=torch.long) for length in (5, 6, 7, 8)]
    for ids in inputs:
        torch._dynamo.mark_dynamic(ids, 1)
    return Encoder(), [(ids,) for ids in inputs]


# A length that changes, and no code that fixes it.
def scan2(sequence):  # <- RC201
    return sequence.cumsum(0) * 0.9


def good_4():
    return scan2, [(torch.randn(n, 3),) for n in (4, 6)]
