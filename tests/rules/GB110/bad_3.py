"""A gradient penalty: autograd.grad with create_graph inside the loss."""
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, samples):
        score = self.net(samples).sum()
        slope = torch.autograd.grad(score, samples, create_graph=True)[0]
        return score + (slope.norm(dim=-1) - 1).pow(2).mean()


def make():
    return Critic(), [(torch.randn(4, 3, requires_grad=True),)]


EXPECT = [
    {"code": "GB110", "kind": "graph_break", "line": "torch.autograd.grad(", "fix": ["torch.func", "outside", "trace_autograd_ops"], "torch": "<2.14"},
    {"code": "GB110", "kind": "skipped_frame", "line": "torch.autograd.grad(", "fix": ["torch.func", "outside", "trace_autograd_ops"], "torch": ">=2.15"},
]
