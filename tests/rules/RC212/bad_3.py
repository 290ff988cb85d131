"""A tuple of feature maps with a varying number of levels."""
import torch


def pyramid(features):
    return torch.stack([level.mean() for level in features]).sum()


def make():
    levels = [torch.randn(4) for _ in range(5)]
    return pyramid, [(tuple(levels[:n]),) for n in (2, 3, 4)]


EXPECT = [{"code": "RC212", "kind": "recompile", "line": "for level in features", "fix": ["length", "stack", "pad", "fixed", "tensor"]}]
