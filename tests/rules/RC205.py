import torch

INPUTS = [torch.randn(8), torch.randn(8, dtype=torch.float64), torch.randn(8)]


# Some batches arrive in double precision (numpy default), the rest in float.
def standardise(x):  # run: RC205
    return (x - x.mean()) / (x.std() + 1e-5)


def bad():
    return standardise, [(x,) for x in INPUTS]


# Everything is cast before the call.
def good():
    return standardise, [(x.float(),) for x in INPUTS]
