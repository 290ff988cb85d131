import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"bad": {"compile": {"dynamic": True}}}


# An overloaded operator names no argument in words, only the types it was given.
def spread(x):  # run: RC203
    y = x * 2
    return torch.std(y, 1, unbiased=x.shape[1] > 4)  # <- GB118


def bad():
    return spread, [(torch.randn(2, length, 8),) for length in (8, 6, 9, 12)]


# A comparison of sizes is given to an operator as a bool.
def attend(x):  # run: RC201
    causal = x.shape[2] > 1
    mixed = F.scaled_dot_product_attention(x, x, x, is_causal=causal)  # <- GB118
    return mixed + 1


def every(x):  # run: RC201
    return attend(x) + attend(x.relu())


def bad_2():
    return every, [(torch.rand(1, 2, length, 8),) for length in (3, 4, 5)]


# The bool is plain: a condition decides it, or a setting does.
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_causal = True

    def forward(self, x):  # run: RC201
        causal = True if x.shape[2] > 1 else False
        x = F.scaled_dot_product_attention(x, x, x, is_causal=causal)
        x = F.scaled_dot_product_attention(x, x, x, is_causal=self.is_causal)
        scale = 0.1 if x.shape[2] > 1 else 0.0
        return F.dropout(x, scale, training=self.training)


def good():
    return Attention(), [(torch.rand(1, 2, length, 8),) for length in (3, 4, 5)]
