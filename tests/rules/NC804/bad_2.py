"""The stance is set as a context manager around the call that was meant to be fast."""
import torch
from torch import nn

AS_WRITTEN = True


def make():
    model = torch.compile(nn.Linear(4, 4), backend="eager")

    def evaluate(x):
        with torch.compiler.set_stance("force_eager"):
            return model(x)

    return evaluate, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC804", "kind": "no_op", "line": "set_stance(", "severity": "high", "fix": ["set_stance", "default", "force_eager", "stance"]}]
