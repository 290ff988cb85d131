import torch
from torch.compiler import is_compiling

OPTIONS = {"*": {"compile": {"backend": "eager"}}}


# Compiled code takes a branch that computes something else.
def bad():
    def f(x):
        if is_compiling():  # run: NM405
            return x * 2
        return x * 3

    return f, [(torch.ones(3),)]


# A branch for compiled code that computes the same in another way.
def good():
    def f(x):
        y = x.relu()
        if not torch.compiler.is_compiling():
            y = y.clone()
        return y + 1

    return f, [(torch.randn(3),)] * 2
