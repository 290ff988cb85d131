"""`mark_dynamic` turns working code into an error.

If the code compares the size with a number, or an operator needs a certain size, torch
raises `ConstraintViolationError` instead of compiling.

Workaround: `maybe_mark_dynamic`, which is a request and not a requirement.

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

# The workaround
assert not raises(maybe_mark_dynamic)
