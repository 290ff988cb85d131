"""A small function is slower compiled than in eager.

Each call checks guards and passes through wrappers. That takes longer than one
operation on a few numbers.

Workaround: compile a larger part of the program, so that the cost is paid once for much
work.

Group: speed
Code: SP501
"""

import timeit

import torch

x = torch.ones(4)


def tiny(x):
    return x + 1


def make():
    return tiny, [(x,)] * 3


def many(x, function=tiny):
    for _ in range(20):
        x = function(x)
    return x


def seconds(function, *arguments):
    return min(timeit.repeat(lambda: function(*arguments), number=20, repeat=20))


inner, outer = (torch.compile(f, backend="eager") for f in (tiny, many))
inner(x), outer(x)
assert seconds(inner, x) > 1.2 * seconds(tiny, x)

# The workaround
assert seconds(outer, x) < 0.5 * seconds(many, x, inner)
