import torch
import torch._dynamo
import torch.nn.functional as F
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


# A key/value cache in a buffer of fixed size.
class StaticCache(nn.Module):
    def __init__(self, longest=8, width=4):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, longest, width))
        self.register_buffer("values", torch.zeros(1, longest, width))
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, token, position):
        q, k, v = self.qkv(token).chunk(3, -1)
        with torch.no_grad():
            self.keys.index_copy_(1, position, k)
            self.values.index_copy_(1, position, v)
        mask = torch.arange(self.keys.shape[1]) <= position
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask[None, None])


def good_2():
    return StaticCache(), [(torch.randn(1, 1, 4), torch.tensor([i])) for i in range(5)]


# einops-style reshapes on symbolic sizes under dynamic=True.
def windows(x):
    batch, length, width = x.shape
    parts = x.reshape(batch, length // 2, 2, width).transpose(1, 2).flatten(0, 1)
    return parts.mean(1).view(batch, 2, width).permute(0, 2, 1).contiguous()


def good_3():
    return windows, [(torch.randn(b, n, 6),) for b, n in ((3, 8), (4, 10), (5, 12))]


# A length that changes, and no code that fixes it.
def scan2(sequence):  # <- RC201
    return sequence.cumsum(0) * 0.9


def good_4():
    return scan2, [(torch.randn(n, 3),) for n in (4, 6)]
