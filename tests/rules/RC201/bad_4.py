"""One recompile, but a Python loop over the sequence gives each length its own graph."""
import torch


def scan(sequence):
    state = torch.zeros(3)
    for step in range(sequence.shape[0]):
        state = state * 0.9 + sequence[step]
    return state


def make():
    return scan, [(torch.randn(n, 3),) for n in (4, 6)]


EXPECT = [
    {"code": "RC201", "kind": "recompile", "severity": "medium", "line": "def scan(sequence):", "fix": ["pad"]},
    {"code": "DS603", "kind": "specialization", "line": "for step in range(sequence.shape[0]):", "fix": ["loop", "scan"]},
]
