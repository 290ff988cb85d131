import torch

OPTIONS = {"bad": {"compile": {"backend": "eager"}}}


# A result that changes is assumed to be constant.
settings = {"gain": 1.0}


@torch.compiler.assume_constant_result
def gain():
    return settings["gain"]


def bad():
    def f(x):
        return x * gain()  # <- NM414

    return f, [(torch.ones(3),)] * 3


def before_call(fn, index):
    settings["gain"] = 1.0 + index
