"""Dropout under Inductor: another random stream, which is no more than that."""
import torch

SLOW = True


def make():
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
    return net, [(torch.randn(8, 16),)]


EXPECT = [{"code": "NM404", "kind": "numerics", "severity": "low", "line": "def make", "fix": ["fallback_random"]}]
