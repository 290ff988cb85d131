import os
import torch

OPTIONS = {"bad": {"compile": {"backend": "eager"}}}


# An environment variable that the calls change is read once, while tracing.
def bad():
    def f(x):
        gain = 2.0 if os.environ.get("TORCHPROOF_NM411") == "hi" else 1.0  # <- NM411
        return x * gain

    return f, [(torch.ones(3),)] * 2


def before_call(fn, index):
    if index == 1:
        os.environ["TORCHPROOF_NM411"] = "hi"
