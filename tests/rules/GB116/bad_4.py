"""A graph layer multiplies by a sparse adjacency matrix: sparse tensors are not traced."""
import torch
from torch import nn


class GraphLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("adjacency", torch.eye(3).to_sparse_csr())

    def forward(self, nodes):
        nodes = self.fc(nodes)
        return torch.relu(self.adjacency @ nodes)


def make():
    return GraphLayer(), [(torch.randn(3, 4),)] * 3


EXPECT = [{"code": "GB116", "kind": "skipped_frame", "line": "self.adjacency @ nodes", "severity": "high", "fix": ["dense", "disable", "sparse", "index_add", "scatter"]}]
