"""The batch size equals the number of classes in the first batch only."""
import torch

COMPILE = {"dynamic": True}


def margins(logits, bias):
    return (logits + bias).amax(-1) - logits.mean(-1)


def make():
    return margins, [(torch.randn(b, 7), torch.randn(7)) for b in (7, 5, 6, 8)]


EXPECT = [{"code": "RC203", "kind": "recompile", "line": "def margins(logits, bias):", "fix": ["use_duck_shape", "different sizes", "mark_dynamic", "mark_unbacked", "warm up"]}]
