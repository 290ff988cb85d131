"""`mark_dynamic` has no effect on a dimension of size 1.

It is documented to raise where a size is compiled in. For size 1 it does not, and the
next size recompiles.

Workaround: make the first call with two rows or more.

Group: shapes
Code: RC202
"""

import torch
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
fast = torch.compile(lambda x: x.sin() + 1, backend=counter)


def graphs(*sizes):
    torch._dynamo.reset()
    counter.clear()
    for rows in sizes:
        x = torch.ones(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        fast(x)
    return counter.frame_count


assert graphs(1, 5, 7) == 2

# The workaround
assert graphs(2, 5, 7) == 1
