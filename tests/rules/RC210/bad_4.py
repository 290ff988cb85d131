"""A dtype as an argument."""
import torch


def convert(x, dtype):
    return x.to(dtype) * 2


def make():
    return convert, [(torch.randn(4), dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]


EXPECT = [{"code": "RC210", "kind": "recompile", "line": "x.to(dtype) * 2", "fix": ["dtype", "fixed", "separate", "constant", "outside"]}]
