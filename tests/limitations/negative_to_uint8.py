"""A negative float becomes another uint8 in compiled code than in eager.

C++ leaves such a conversion undefined, and the two are built by different compilers.

Way round: convert to a signed integer first.

Group: wrong
Code: NM401
Needs: inductor
"""

import torch


def f(x):
    return x.to(torch.uint8)


def make():
    return f, [(torch.linspace(-100, 100, 67),)]


(x,) = make()[1][0]
assert not torch.equal(torch.compile(f)(x), f(x))


# The way round
def through_int(x):
    return x.to(torch.int32).to(torch.uint8)


assert torch.equal(torch.compile(through_int)(x), through_int(x))
