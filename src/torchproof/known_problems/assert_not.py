"""`assert not` of a tensor breaks the graph; `assert` alone does not.

torch turns a plain condition into a check at run time. Its negation is a Python branch.

Workaround: write the condition without `not`.

Group: breaks
Code: GB102
"""

import torch
from torch._dynamo.testing import CompileCounter


def negated(x):
    assert not (x < 0).any(), "must not be negative"
    return x * 2


counter = CompileCounter()
torch.compile(negated, backend=counter)(torch.ones(2))
assert counter.frame_count == 2


# The workaround
def plain(x):
    assert (x >= 0).all(), "must not be negative"
    return x * 2


counter.clear()
torch.compile(plain, backend=counter)(torch.ones(2))
assert counter.frame_count == 1
