import collections
import torch


# deque.rotate on a ring buffer of states.
def ring(x):
    states = collections.deque([x, x * 2, x * 3], maxlen=3)
    states.rotate(1)  # <- GB117<2.14
    return states[0] + states[1]


def bad():
    return ring, [(torch.randn(4),)] * 2


# globals() picks an activation by name on every call.
def swish(x):
    return x * x.sigmoid()


def feed_forward(x):
    x = x * 2
    function = globals()["swish"]  # <- GB117
    return function(x)


def bad_5():
    return feed_forward, [(torch.randn(2, 4),)] * 2
