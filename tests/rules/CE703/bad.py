"""A user's backend does not know an operator and raises."""
import torch
from torch import nn

AS_WRITTEN = True
KNOWN = {"linear", "relu"}


def strict_backend(graph, example_inputs):
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target.__name__ not in KNOWN:
            raise NotImplementedError(f"no kernel for {node.target.__name__}")
    return graph.forward


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.softmax(self.fc(x), -1)


def make():
    return torch.compile(Model(), backend=strict_backend), [(torch.randn(2, 4),)]


EXPECT = [{"code": "CE703", "kind": "compile_error", "line": "raise NotImplementedError(", "severity": "high", "fix": ["backend"]}]
