"""A closure value that a scheduler changes between calls."""
import torch


def make():
    temperature = 1.0

    def sample(logits):
        return (logits / temperature).softmax(-1)

    def cool():
        nonlocal temperature
        temperature *= 0.9

    sample.cool = cool
    return sample, [(torch.randn(5),)] * 5


def before_call(sample, index):
    if index:
        sample.cool()


EXPECT = [{"code": "RC210", "kind": "recompile", "line": "(logits / temperature)", "severity": "low", "fix": ["tensor", "argument", "dynamic"]}]
