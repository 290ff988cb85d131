"""numpy's seed is set before each call, and compiled code draws from torch."""
import numpy as np
import torch

COMPILE = {"backend": "eager"}


def make():
    def noisy(x):
        return x + torch.from_numpy(np.random.randn(3))

    return noisy, [(torch.ones(3),)] * 2


def before_call(fn, index):
    np.random.seed(7)


EXPECT = [{"code": "NM413", "kind": "stale_state", "severity": "high", "line": "np.random.randn", "fix": ["torch.rand", "argument"]}]
