import torch

OPTIONS = {"good": {"compile": {"backend": "eager"}}}


# A result that is constant, and a global that is guarded when it changes.
GAIN = 1.0


@torch.compiler.assume_constant_result
def offset():
    return 2.0


def good():
    def f(x):
        return x * GAIN + offset()

    return f, [(torch.ones(3),)] * 3


def before_call(fn, index):
    global GAIN
    GAIN = 1.0 + index
