"""A transposed view on some calls, and a slice of a larger buffer on another."""
import torch


def energy(field):
    return (field * field).sum(-1).sqrt()


def make():
    big = torch.randn(4, 16)
    return energy, [(torch.randn(4, 8),), (torch.randn(8, 4).t(),), (big[:, 3:11],)]


EXPECT = [{"code": "RC204", "kind": "recompile", "line": "def energy(field):", "fix": ["contiguous", "stride", "clone"]}]
