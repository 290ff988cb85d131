"""Two sizes that are equal at first are treated as one.

Dynamic sizes with the same value get the same symbol. A later call in which they differ
recompiles.

Workaround: use different sizes in the first call, or set
`torch.fx.experimental._config.use_duck_shape = False`.

Group: shapes
Code: RC203
"""

import torch
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
fast = torch.compile(lambda x, y: (x * 2, y * 2), backend=counter, dynamic=True)


def graphs(*pairs):
    torch._dynamo.reset()
    counter.clear()
    for first, second in pairs:
        fast(torch.ones(first), torch.ones(second))
    return counter.frame_count


assert graphs((4, 4), (4, 5)) == 2

# The workaround
assert graphs((4, 5), (4, 4), (7, 9)) == 1
