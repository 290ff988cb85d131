"""A hook fills a dictionary that was empty at the first call: one recompile, then it settles."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.activations = {}
        self.a.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.activations["a"] = output.detach()

    def forward(self, x):
        return self.b(self.a(x).relu())


def make():
    return Net(), [(torch.randn(3, 4),)] * 4


EXPECT = [{"code": "RC212", "kind": "recompile", "line": "self.activations[\"a\"] = output.detach()", "severity": "low", "fix": ["keys", "same", "fixed", "before", "initial", "return"]}]
