"""Inductor on the CPU computes `x % inf` as NaN.

Eager gives x, like IEEE arithmetic.

Workaround: exclude infinite divisors.

Group: wrong
Code: NM401
Reference: https://github.com/pytorch/pytorch/issues/198057
Needs: inductor
"""

import torch


def f(x, y):
    return x % y


def make():
    return f, [(torch.tensor([1.0, 2.5]), torch.tensor([2.0, torch.inf]))]


x, y = make()[1][0]
assert f(x, y).tolist() == [1, 2.5] and torch.compile(f)(x, y)[1].isnan()


# The workaround
def guarded(x, y):
    infinite = y.isinf()
    return torch.where(infinite, x, x % torch.where(infinite, 1.0, y))


assert torch.compile(guarded)(x, y).tolist() == [1, 2.5]
