"""A user's backend that works."""
import torch
from torch import nn

AS_WRITTEN = True


def counting_backend(graph, example_inputs):
    graph.meta["nodes"] = len(graph.graph.nodes)
    return graph.forward


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.softmax(self.fc(x), -1)


def make():
    return torch.compile(Model(), backend=counting_backend), [(torch.randn(2, 4),)] * 3


EXPECT = []
