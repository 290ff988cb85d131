"""A call that adds one to four numbers: guards and dispatch cost more than the work."""
import torch

COMPILE = {"backend": "aot_eager"}


def make():
    def add(x):
        return x + 1

    return add, [(torch.randn(4),)] * 3


EXPECT = [{"code": "SP501", "kind": "slowdown", "line": "def add(x)", "fix": ["larger region", "do not compile", "batch"]}]
