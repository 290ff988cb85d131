"""An explicit graph break between two halves of a network."""
import torch
import torch._dynamo
from torch import nn


class TwoStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.decoder = nn.Linear(8, 4)

    def forward(self, x):
        code = self.encoder(x).relu()
        torch._dynamo.graph_break()
        return self.decoder(code)


def make():
    return TwoStage(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB107", "kind": "graph_break", "line": "torch._dynamo.graph_break()", "status": "intentional", "fix": ["remove", "intended", "intentional"]}]
