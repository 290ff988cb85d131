"""Forces as the gradient of an energy: torch.autograd.grad inside the model."""
import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, positions):
        energy = self.net(positions).sum()
        forces = torch.autograd.grad(energy, positions)[0]
        return energy.detach(), -forces


def make():
    return Potential(), [(torch.randn(5, 3, requires_grad=True),)] * 3


EXPECT = [
    {"code": "GB110", "kind": "graph_break", "line": "torch.autograd.grad(", "fix": ["torch.func", "outside", "trace_autograd_ops"], "torch": "<2.14"},
    {"code": "GB110", "kind": "skipped_frame", "line": "torch.autograd.grad(", "fix": ["torch.func", "outside", "trace_autograd_ops"], "torch": ">=2.15"},
]
