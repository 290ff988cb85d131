"""A matrix product is tried in one layout and, on failure, in the other."""
import torch


def project(x, weight):
    x = x.relu()
    try:
        return x @ weight
    except RuntimeError:
        return x @ weight.t()


def make():
    return project, [(torch.randn(3, 4), torch.randn(5, 4))]


EXPECT = [{"code": "CE701", "kind": "compile_error", "line": "return x @ weight\n", "severity": "high", "fix": ["shape", "try", "check", "if"]}]
