"""dynamic=True, but a Python loop over the sequence fixes its length."""
import torch

COMPILE = {"dynamic": True}


def scan(sequence):
    state = torch.zeros(3)
    for step in range(sequence.shape[0]):
        state = state * 0.9 + sequence[step]
    return state


def make():
    return scan, [(torch.randn(n, 3),) for n in (4, 5, 6)]


EXPECT = [{"code": "DS603", "kind": "specialization", "line": "for step in range(sequence.shape[0]):", "fix": ["loop", "scan", "tensor", "static", "mark_dynamic"]}]
