"""A comparison of sizes is given to an operator as a bool."""

import torch
import torch.nn.functional as F


def attend(x):  # run: RC201
    causal = x.shape[2] > 1
    mixed = F.scaled_dot_product_attention(x, x, x, is_causal=causal)  # <- GB118
    return mixed + 1


def every(x):  # run: RC201
    return attend(x) + attend(x.relu())  # run: RC201


def make():
    return every, [(torch.rand(1, 2, length, 8),) for length in (3, 4, 5)]
