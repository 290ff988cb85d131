"""str() of a tensor for a status line."""
import torch
from torch import nn


class Status(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        loss = self.fc(x).mean()
        line = "loss " + str(loss)
        return loss * 2, len(line) > 3


def make():
    return Status(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "GB117", "kind": "graph_break", "line": "str(loss)", "fix": ["outside", "remove", "str"]}]
