"""A Python loop over a marked dimension unrolls it and so fixes its size."""
import torch
import torch._dynamo


def scan(sequence):
    state = torch.zeros(3)
    for step in range(sequence.shape[0]):
        state = state * 0.9 + sequence[step]
    return state


def make():
    sequence = torch.randn(5, 3)
    torch._dynamo.mark_dynamic(sequence, 0)
    return scan, [(sequence,)]


EXPECT = [{"code": "DS601", "kind": "specialization", "line": "for step in range(sequence.shape[0]):", "fix": ["loop", "scan", "maybe_mark_dynamic", "mark_dynamic"]}]
