import torch

OPTIONS = {"*": {"compile": {"dynamic": True}}}


# A limit on the length; in the second program beside a size of 1.
def pool(x):
    if x.shape[0] <= 128:  # run: RC220
        return x.mean(0)
    return x[:128].mean(0)


def bad():
    return pool, [(torch.randn(n, 4),) for n in (100, 90, 200, 150, 80)]


def pool_2(x):
    if x.shape[0] <= 128:  # run: RC220
        return x.mean(0)
    return x[:128].mean(0)


def bad_2():
    return pool_2, [(torch.randn(n, 4),) for n in (100, 90, 1, 80)]


# The limit holds for every input, as the caller cuts what is longer.
def good():
    return pool, [(torch.randn(min(n, 128), 4),) for n in (100, 90, 200, 150, 80)]
