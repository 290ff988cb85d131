"""fullgraph=True and a branch on a tensor."""
import torch

COMPILE = {"fullgraph": True}


def clip(gradient):
    norm = gradient.norm()
    if norm > 1.0:
        gradient = gradient / norm
    return gradient


def make():
    return clip, [(torch.ones(4) * 3,)]


EXPECT = [{"code": "CE704", "kind": "compile_error", "line": "if norm > 1.0:", "severity": "high", "fix": ["torch.where", "torch.cond", "fullgraph", "clamp"]}]
