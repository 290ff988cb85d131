"""fullgraph=True and nothing in the way; it even captures .item() and a mask by itself."""
import torch
from torch import nn

COMPILE = {"fullgraph": True}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        norm = x.detach().norm()
        x = torch.where(norm > 1.0, x / norm, x)
        scale = x.detach().sum().item()
        return x.relu() * scale + x[x > 0].sum()


def make():
    return Model(), [(torch.randn(2, 4),)] * 3


EXPECT = []
