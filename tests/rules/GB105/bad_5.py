"""bisect and heapq are C functions: choosing a bucket for relative positions in a loop skips the whole function."""
import bisect

import torch

EDGES = [1, 2, 4, 8]


def relative_bias(table, length):
    rows = []
    for distance in range(length):
        bucket = bisect.bisect_right(EDGES, distance)
        rows.append(table[bucket])
    return torch.stack(rows).softmax(-1)


def make():
    return relative_bias, [(torch.randn(5, 4), 6)] * 3


EXPECT = [{"code": "GB105", "kind": "skipped_frame", "line": "bisect.bisect_right(", "severity": "high", "fix": ["bucketize", "outside", "precompute", "__init__", "custom_op", "searchsorted"]}]
