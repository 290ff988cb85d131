"""A matrix product is tried in one layout and, on failure, in the other."""
import torch


def project(x, weight):
    x = x.relu()
    try:
        y = torch.mm(x, weight)
    except RuntimeError:
        y = torch.mm(x, weight.mT)
    return y * 2


def make():
    return project, [(torch.randn(3, 4), torch.randn(5, 4))]


EXPECT = [{"code": "CE701", "kind": "compile_error", "line": "torch.mm(x, weight)", "severity": "high", "fix": ["shape", "try", "check", "if"], "torch": "<2.14"}]
