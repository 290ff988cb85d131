"""`expand` gives a batch of one other strides than a larger batch.

Strides are guarded, so the call with one row recompiles even if the size is dynamic.

Workaround: `repeat`, or index arithmetic that makes a new tensor.

Group: shapes
Code: RC204
"""

import torch
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
fast = torch.compile(lambda x: x + 1, backend=counter)


def graphs(positions):
    torch._dynamo.reset()
    counter.clear()
    for rows in (3, 1, 4):
        x = positions(rows)
        mark_unbacked(x, 0)
        fast(x)
    return counter.frame_count


assert graphs(lambda rows: torch.arange(6)[None].expand(rows, -1)) == 2

# The workaround
assert graphs(lambda rows: torch.arange(6).repeat(rows, 1)) == 1
