"""Targets are gathered over a batch that is marked dynamic, through unflatten."""

import torch
from torch._dynamo.decorators import mark_dynamic, maybe_mark_dynamic
from torch.nn.functional import cross_entropy

EXPECT = []


def losses(tokens, entries, logits):
    rows = entries.flatten(0, 1) * 1
    ends = rows.clamp(max=191).unflatten(0, (-1, 3)).flatten(1)
    targets = tokens.gather(1, ends).view_as(rows)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def make():
    tokens, entries = torch.randint(256, (2, 192)), torch.randint(192, (2, 3, 171))
    for tensor in (tokens, entries):
        mark_dynamic(tensor, 0)
    maybe_mark_dynamic(entries, 2)
    return losses, [(tokens, entries, torch.randn(6, 171, 256))]
