"""An environment variable that the calls change is read once, while tracing."""
import os

import torch

COMPILE = {"backend": "eager"}


def make():
    def f(x):
        gain = 2.0 if os.environ.get("TORCHPROOF_NM411") == "hi" else 1.0
        return x * gain

    return f, [(torch.ones(3),)] * 2


def before_call(fn, index):
    if index == 1:
        os.environ["TORCHPROOF_NM411"] = "hi"


EXPECT = [{"code": "NM411", "kind": "stale_state", "severity": "high", "line": "os.environ.get(", "fix": ["argument"]}]
