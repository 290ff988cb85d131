import collections
import torch


# sorted() with a tensor as the key (rank heads by importance).
def prune(x):
    heads = list(x.chunk(3, dim=-1))
    ranked = sorted(heads, key=lambda head: head.norm())  # <- GB117
    return ranked[-1] * 2


def bad():
    return prune, [(torch.randn(2, 6),)] * 2


# repr() of a tensor builds a cache key.
def keyed(x):
    x = x.round()
    key = repr(x)  # <- GB117
    return x * 2, key


def bad_2():
    return keyed, [(torch.ones(4),)] * 2


# deque.rotate on a ring buffer of states.
def ring(x):
    states = collections.deque([x, x * 2, x * 3], maxlen=3)
    states.rotate(1)  # <- GB117<2.14
    return states[0] + states[1]


def bad_4():
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
