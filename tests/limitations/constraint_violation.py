"""`mark_dynamic` turns code that runs into an error.

Where the code compares the size with a number, or an operator wants a certain one, the
mark cannot be kept, and torch raises `ConstraintViolationError` instead of compiling.

Way round: `maybe_mark_dynamic`, which asks and does not insist.

Group: shapes
Code: DS601
Reference: https://github.com/pytorch/pytorch/issues/136002
"""

import torch
from torch._dynamo.decorators import mark_dynamic, maybe_mark_dynamic


def f(x):
    return x * 2 if x.shape[0] == 6 else x * 3


def raises(mark):
    torch._dynamo.reset()
    x = torch.ones(6)
    mark(x, 0)
    try:
        torch.compile(f, backend="eager")(x)
    except Exception as failure:
        return "marked" in str(failure)
    return False


assert raises(mark_dynamic)

# The way round
assert not raises(maybe_mark_dynamic)
