"""Branches on shapes, types and settings; choices that stay in the graph."""

import torch

DEBUG = False


def every(x, mask=None, traced: torch.Tensor = False, *, training: bool = True):
    if traced or not training:
        x = x - 1
    if x.shape[0] > 2 and x.dim() == 1 and training:
        x = x + 1
    if mask is not None:
        x = x * mask
    if isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.requires_grad:
        x = x * 1.5
    if DEBUG and x.sum() > 0:
        x = x * 0
    assert x.isfinite().all(), "values must be finite"
    assert x.sum() < 1e9
    assert x.shape[0] > 1 and x.isfinite().all(), "values must be finite"
    x = torch.where(x.sum() > 0, x, -x)
    y = (x > 0) & (x < 100) | ~(x == 0)
    best = max(x.sum(), x.mean()) + min(x.sum(), 2)
    near = torch.isclose(x, x).all()
    return x * y + best + near


def make():
    return every, [(torch.rand(4), torch.ones(4))] * 2
