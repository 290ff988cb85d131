"""A branch for compiled code that computes the same in another way."""
import torch

COMPILE = {"backend": "eager"}


def make():
    def f(x):
        y = x.relu()
        if not torch.compiler.is_compiling():
            y = y.clone()
        return y + 1

    return f, [(torch.randn(3),)] * 2


EXPECT = []
