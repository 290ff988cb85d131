"""A break among the arguments of a tensor's method: Dynamo resumes with the method, not with its name."""
import torch


def replace(x, seen, mask):
    y = x * 2
    y[mask] = seen.view_as(y[mask])
    return y + 1


def make():
    mask = torch.tensor([True, False, True, False])
    return replace, [(torch.randn(4, 8), torch.randn(16), mask) for _ in range(3)]


EXPECT = [
    {"code": "GB105", "kind": "graph_break", "line": "seen.view_as(y[mask])", "fix": ["statement of their own"]},
    {"code": "GB103", "kind": "graph_break", "line": "seen.view_as(y[mask])", "fix": ["masked"]},
]
