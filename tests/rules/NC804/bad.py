"""A debugging aid left in: the stance forces eager for the whole process."""
import torch
from torch import nn

AS_WRITTEN = True


def make():
    torch.compiler.set_stance("force_eager")
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")

    def step(x):
        return model(x).sum()

    return step, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC804", "kind": "no_op", "line": "set_stance(", "severity": "high", "fix": ["set_stance", "default", "force_eager", "stance"]}]
