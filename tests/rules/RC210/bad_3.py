"""A bool argument that flips."""
import torch


def attend(scores, causal):
    if causal:
        scores = scores.tril()
    return scores.softmax(-1)


def make():
    return attend, [(torch.randn(4, 4), flag) for flag in (True, False, True, False)]


EXPECT = [{"code": "RC210", "kind": "recompile", "line": "if causal:", "fix": ["separate", "argument", "constant", "tensor", "torch.where", "fixed"]}]
