import numpy as np
import torch

OPTIONS = {"bad": {"compile": {"backend": "eager"}}}


# numpy's seed is set before each call, and compiled code draws from torch.
def bad():
    def noisy(x):
        return x + torch.from_numpy(np.random.randn(3))  # <- NM413

    return noisy, [(torch.ones(3),)] * 2


def before_call(fn, index):
    np.random.seed(7)
