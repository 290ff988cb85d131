"""A result that changes is assumed to be constant."""
import torch

COMPILE = {"backend": "eager"}
settings = {"gain": 1.0}


@torch.compiler.assume_constant_result
def gain():
    return settings["gain"]


def make():
    def f(x):
        return x * gain()

    return f, [(torch.ones(3),)] * 3


def before_call(fn, index):
    settings["gain"] = 1.0 + index


EXPECT = [{"code": "NM414", "kind": "stale_state", "severity": "high", "line": "x * gain()", "fix": ["remove assume_constant_result", "argument"]}]
