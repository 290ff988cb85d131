import torch


# The default dtype is changed between calls.
def noise_like(x):  # <- RC216
    return x + torch.ones(4)


def before_call(fn, index):
    torch.set_default_dtype(torch.float64 if index == 1 else torch.float32)


def bad_2():
    return noise_like, [(torch.randn(4, dtype=torch.float32),)] * 3
