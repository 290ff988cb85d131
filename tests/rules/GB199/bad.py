"""A scripted module inside the compiled model: Dynamo does not look into TorchScript."""
import torch
from torch import nn


class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x * 2
        features = self.backbone(x)
        return self.head(features)


def make():
    return Hybrid(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB199", "kind": "skipped_frame", "line": "features = self.backbone(x)", "severity": "high", "fix": ["jit", "script", "TorchScript"]}]
