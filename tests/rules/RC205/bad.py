"""Some batches arrive in double precision (numpy default), the rest in float."""
import torch


def standardise(x):
    return (x - x.mean()) / (x.std() + 1e-5)


def make():
    return standardise, [(torch.randn(8),), (torch.randn(8, dtype=torch.float64),), (torch.randn(8),)]


EXPECT = [{"code": "RC205", "kind": "recompile", "line": "def standardise(x):", "fix": ["dtype", "cast", ".to(", ".float()"]}]
