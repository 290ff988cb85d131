"""A generator that branches on data: the loop that consumes it is skipped as a whole."""
import torch


def active_rows(x):
    for row in x:
        if row.sum() > 0:
            yield row


def pool(x):
    x = x * 2
    total = torch.zeros(4)
    for row in active_rows(x):
        total = total + row
    return total


def make():
    return pool, [(torch.ones(3, 4),)] * 3


EXPECT = [{"code": "GB102", "kind": "skipped_frame", "line": "if row.sum() > 0:", "severity": "high", "fix": ["torch.where", "mask", "torch.cond"]}]
