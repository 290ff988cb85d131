import numpy as np
import torch

OPTIONS = {"*": {"compile": {"backend": "eager"}}}


def before_call(fn, index):
    np.random.seed(7)


# numpy's seed is set before each call, and compiled code draws from torch.
def bad():
    def noisy(x):
        return x + torch.from_numpy(np.random.randn(3))  # <- NM413

    return noisy, [(torch.ones(3),)] * 2


# numpy's numbers are drawn outside and passed in.
def good():
    def noisy(x, noise):
        return x + torch.from_numpy(noise)

    return noisy, [(torch.ones(3), np.random.randn(3)) for _ in range(2)]
