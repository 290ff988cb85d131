"""A global mode string."""
import torch

MODE = "train"


def regularise(x):
    if MODE == "train":
        return x + torch.randn_like(x) * 0.1
    return x * 1.0


def make():
    return regularise, [(torch.randn(4),)] * 4


def before_call(fn, index):
    global MODE
    MODE = "train" if index % 2 == 0 else "eval"


EXPECT = [{"code": "RC214", "kind": "recompile", "line": "if MODE == \"train\":", "fix": ["global", "argument", "separate"]}]
