"""A small function is slower compiled than in eager.

Each call checks guards and passes through wrappers. That is more than one operation on
a few numbers takes.

Way round: compile further out, so that the price is paid once for much work.

Group: speed
Code: SP501
"""

import torch
from torch.utils.benchmark import Timer

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
    names = {"function": function, "arguments": arguments}
    return Timer("function(*arguments)", globals=names).blocked_autorange().median


inner, outer = (torch.compile(f, backend="eager") for f in (tiny, many))
inner(x), outer(x)
assert seconds(inner, x) > 1.5 * seconds(tiny, x)

# The way round
assert seconds(outer, x) < 0.5 * seconds(many, x, inner)
