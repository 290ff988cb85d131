"""Every operation on a tensor loses its marks of dynamic sizes.

`mark_dynamic` writes to one tensor object. The results of `.to`, `.clone`, a slice or a
collate function have no mark.

Workaround: mark last, right before the compiled call.

Group: shapes
Code: RC201
"""

import torch
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
fast = torch.compile(lambda x: x.sin() + 1, backend=counter)


def graphs(prepare):
    torch._dynamo.reset()
    counter.clear()
    for rows in (2, 3, 4):
        fast(prepare(torch.ones(rows, 4)))
    return counter.frame_count


def marked(x):
    torch._dynamo.mark_dynamic(x, 0)
    return x


assert graphs(lambda x: marked(x).to(torch.float64)) == 2

# The workaround
assert graphs(lambda x: marked(x.to(torch.float64))) == 1
