"""Masks that keep sizes, and sizes that are told."""

import torch
import torch.nn.functional as F


def every(x):
    mask = x > 0
    x = x.clone()
    x[mask] = 0.5
    x[~mask] = x.sum()
    x = torch.where(mask, x, 0).masked_fill(x > 9, 1.0)
    x = x.masked_scatter(mask, torch.ones(4))
    labels = mask.long()
    hot = F.one_hot(labels, num_classes=2).sum()
    longer = x.repeat_interleave(2) + x.repeat_interleave(labels + 1, output_size=8)
    return x[labels] + hot + longer.sum() + torch.nonzero_static(x, size=2).sum()


def make():
    return every, [(torch.ones(4),)] * 2
