import torch
import torch.nn.functional as F

OPTIONS = {"*": {"compile": {"dynamic": True}}, "bad": {}}


# `is_causal` from a comparison of a size.
def attention(x):  # <- RC201
    query = x * 2
    causal = query.shape[1] > 1
    return F.scaled_dot_product_attention(query, query, query, is_causal=causal)  # <- GB118


def bad():
    return attention, [(torch.randn(2, length, 8),) for length in (4, 6, 9, 12)]


# An overloaded operator names no argument in words, only the types it was given.
def spread(x):  # <- RC203
    y = x * 2
    return torch.std(y, 1, unbiased=x.shape[1] > 4)  # <- GB118


def bad_2():
    return spread, [(torch.randn(2, length, 8),) for length in (8, 6, 9, 12)]
