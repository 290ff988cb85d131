"""The default: one recompile when the batch size changes for the first time, then one dynamic graph for all."""
import torch


def scores(q, k):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)


def make():
    return scores, [(torch.randn(n, 3, 8), torch.randn(n, 3, 8)) for n in (4, 6, 9, 5, 7)]


EXPECT = [{"code": "RC201", "kind": "recompile", "line": "def scores(q, k):", "severity": "low", "fix": ["mark_dynamic", "dynamic=True"]}]
