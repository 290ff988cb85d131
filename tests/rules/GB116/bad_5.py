"""resize_ of a scratch buffer."""
import torch


def gather_into(x, scratch):
    x = x * 2
    scratch.resize_(x.shape[0], 2)
    return scratch.zero_() + x.sum()


def make():
    return gather_into, [(torch.randn(3, 4), torch.empty(8))]


EXPECT = [{"code": "GB116", "kind": "graph_break", "line": "scratch.resize_(", "fix": ["allocate", "view", "narrow", "slice", "empty", "resize_"]}]
