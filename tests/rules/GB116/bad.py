"""requires_grad_() on an intermediate (saliency maps)."""
import torch
from torch import nn


class Saliency(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        pixels = x.detach() * 2
        pixels.requires_grad_(True)
        return self.fc(pixels).sum(), pixels


def make():
    return Saliency(), [(torch.randn(3, 4),)] * 2


EXPECT = [{"code": "GB116", "kind": "graph_break", "line": "pixels.requires_grad_(True)", "fix": ["outside", "before", "requires_grad"]}]
