"""deque.rotate on a ring buffer of states."""
import collections

import torch


def ring(x):
    states = collections.deque([x, x * 2, x * 3], maxlen=3)
    states.rotate(1)
    return states[0] + states[1]


def make():
    return ring, [(torch.randn(4),)] * 2


EXPECT = [{"code": "GB117", "kind": "graph_break", "line": "states.rotate(1)", "fix": ["list", "torch.roll", "roll", "slice", "outside"], "torch": "<2.14"}]
