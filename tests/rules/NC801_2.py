import torch

OPTIONS = {"bad_2": {"as_written": True}}


# A function is compiled for the factory, which returns the uncompiled one.
def double(x):
    return x * 2


fast_double = torch.compile(double, backend="eager")  # <- NC801


def bad_2():
    return double, [(torch.randn(2, 4),)] * 3
