import torch

OPTIONS = {"*": {"compile": {"backend": "eager"}}}
settings = {"gain": 1.0}
GAIN = 1.0


def before_call(fn, index):
    global GAIN
    settings["gain"] = GAIN = 1.0 + index


# A result that changes is assumed to be constant.
@torch.compiler.assume_constant_result
def gain():
    return settings["gain"]


def bad():
    def f(x):
        return x * gain()  # run: NM414

    return f, [(torch.ones(3),)] * 3


# A result that is constant, and a global that is guarded when it changes.
@torch.compiler.assume_constant_result
def offset():
    return 2.0


def good():
    def f(x):
        return x * GAIN + offset()

    return f, [(torch.ones(3),)] * 3
