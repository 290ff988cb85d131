"""A scale that is a tensor on some calls and a float on others."""
import torch


def scaled(x, scale):
    return x * scale


def make():
    return scaled, [(torch.randn(4), torch.tensor(3.0)), (torch.randn(4), 2.0), (torch.randn(4), torch.tensor(4.0))]


EXPECT = [{"code": "RC211", "kind": "recompile", "line": "def scaled(x, scale):", "fix": ["type", "tensor", "always"]}]
