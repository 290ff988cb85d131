import torch


# Some batches arrive in double precision (numpy default), the rest in float.
def standardise(x):  # <- RC205
    return (x - x.mean()) / (x.std() + 1e-5)


def bad():
    return standardise, [(torch.randn(8),), (torch.randn(8, dtype=torch.float64),), (torch.randn(8),)]


# Everything is cast before the call.
def good():
    inputs = [torch.randn(8), torch.randn(8, dtype=torch.float64), torch.randn(8)]
    return standardise, [(x.float(),) for x in inputs]
