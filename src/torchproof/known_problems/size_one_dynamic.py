"""Size 1 is compiled in as a constant, also with `dynamic=True`.

A first call with one row gives code for one row only; the next call recompiles.

Workaround: `mark_unbacked`, which makes one graph for every size; code that branches on
the size then fails.

Group: shapes
Code: RC202
Reference: https://github.com/pytorch/pytorch/issues/136605
"""

import torch
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
fast = torch.compile(lambda x: x.sin() + 1, backend=counter, dynamic=True)
for rows in (1, 2, 5):
    fast(torch.ones(rows, 4))
assert counter.frame_count == 2

# The workaround
torch._dynamo.reset()
counter.clear()
for rows in (1, 2, 5):
    x = torch.ones(rows, 4)
    mark_unbacked(x, 0)
    fast(x)
assert counter.frame_count == 1
