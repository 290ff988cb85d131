"""Two dimensions happen to be equal at first, so they share one symbol; the first unequal call recompiles."""
import torch

COMPILE = {"dynamic": True}


def cross_attention(x, context):
    weights = torch.softmax(x @ context.transpose(-1, -2), -1)
    return weights @ context


def make():
    return cross_attention, [(torch.randn(6, 8), torch.randn(m, 8)) for m in (6, 9, 10)]


EXPECT = [{"code": "RC203", "kind": "recompile", "line": "def cross_attention(x, context):", "fix": ["use_duck_shape", "different sizes", "mark_dynamic", "mark_unbacked", "warm up"]}]
