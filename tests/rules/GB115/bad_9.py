"""fork_rng around a sampling step: Dynamo cannot enter the context manager."""
import torch


def sample(logits):
    probabilities = logits.softmax(-1)
    scope = torch.random.fork_rng()
    with scope:
        noise = torch.rand_like(probabilities)
    return (probabilities / noise).argmax(-1)


def make():
    return sample, [(torch.randn(2, 5),)] * 3


EXPECT = [
    {"code": "GB115", "kind": "graph_break", "line": "torch.random.fork_rng()", "fix": ["outside", "context manager", "generator", "move"], "torch": "<2.14"},
    {"code": "GB111", "kind": "skipped_frame", "line": "with scope:", "severity": "high", "fix": ["outside", "context manager"]},
]
