import torch

OPTIONS = {"*": {"compile": {"dynamic": True}}}


# An overloaded operator names no argument in words, only the types it was given.
def spread(x):  # <- RC203
    y = x * 2
    return torch.std(y, 1, unbiased=x.shape[1] > 4)  # <- GB118


def bad():
    return spread, [(torch.randn(2, length, 8),) for length in (8, 6, 9, 12)]
