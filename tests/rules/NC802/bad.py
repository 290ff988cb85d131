"""torch.compile(module) wraps forward only: encode() runs eagerly."""
import torch
from torch import nn

AS_WRITTEN = True


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(8, 2)
        self.up = nn.Linear(2, 8)

    def encode(self, x):
        return self.down(x).tanh()

    def forward(self, x):
        return self.up(self.encode(x))


def make():
    model = torch.compile(AutoEncoder(), backend="eager")

    def features(x):
        return model.encode(x)

    return features, [(torch.randn(3, 8),)] * 3


EXPECT = [{"code": "NC802", "kind": "no_op", "line": "return model.encode(x)", "severity": "high", "fix": ["encode", "method", "forward"]}]
