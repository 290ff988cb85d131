"""A forward hook that its author has disabled."""
import torch
from torch import nn


@torch.compiler.disable
def collect(module, inputs, output):
    module.last = output.detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.a.register_forward_hook(collect)

    def forward(self, x):
        x = x * 2
        h = self.a(x)
        return self.b(h)


def make():
    return Net(), [(torch.randn(3, 4),)] * 3


EXPECT = [{"code": "GB106", "kind": "graph_break", "line": "h = self.a(x)", "status": "intentional", "fix": ["disable", "hook", "intended", "intentional", "outside"]}]
