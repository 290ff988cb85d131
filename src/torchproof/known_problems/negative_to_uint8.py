"""Compiled code converts a negative float to another uint8 than eager.

C++ leaves such a conversion undefined, and different compilers build the two.

Workaround: convert to a signed integer first.

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


# The workaround
def through_int(x):
    return x.to(torch.int32).to(torch.uint8)


assert torch.equal(torch.compile(through_int)(x), through_int(x))
