import numpy as np
import os
import torch

OPTIONS = {"*": {"compile": {"backend": "eager"}}}


def before_call(fn, index):
    if index == 1:
        os.environ["TORCHPROOF_NM411"] = "hi"
    if isinstance(fn, torch.nn.Module):
        fn.gain = float(index)


# An environment variable that the calls change is read once, while tracing.
def bad():
    def f(x):
        gain = 2.0 if os.environ.get("TORCHPROOF_NM411") == "hi" else 1.0  # <- NM411
        return x * gain

    return f, [(torch.ones(3),)] * 2


# Read when the module is made, guarded, without effect, or outside of the call.
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = float(os.environ.get("TORCHPROOF_NM411_INIT", "1"))

    def forward(self, x):
        if os.environ.get("TORCHPROOF_NM411_UNUSED") == "hi":  # read: NM411
            return self.gain * x
        return x * self.gain


def good():
    return Net(), [(torch.ones(3),)] * 2


# Settings and random numbers that compiled code does not look at again.
def every(x):
    if os.environ.get("TORCHPROOF_SCALE") == "2":  # read: NM411
        x = x * 2
    if "TORCHPROOF_SHIFT" in os.environ:  # read: NM411
        x = x + 100
    return x + torch.from_numpy(np.random.rand(4))  # read: NM413


def make():
    return every, [(torch.ones(4),)] * 2
