"""Captured sizes that are used without a branch: a mask and an .item() as a slice bound."""
import torch
import torch._dynamo


def pooled(x, keep, scores):
    kept = x[keep]
    count = (scores > 0).sum().item()
    return kept.sum(0) + x[:count].sum(0)


def make():
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    keep = torch.tensor([True, True, False, True])
    return pooled, [(torch.randn(4, 3), keep, torch.ones(4))] * 3


EXPECT = []
