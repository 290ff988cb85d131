import collections
import torch


# deque.rotate on a ring buffer of states.
def ring(x):
    states = collections.deque([x, x * 2, x * 3], maxlen=3)
    states.rotate(1)  # run: GB117<2.14
    return states[0] + states[1]


def bad():
    return ring, [(torch.randn(4),)] * 2
