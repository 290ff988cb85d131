"""Numbers given as arguments compile twice at most, not once for each value.

Group: mended
"""

import torch
from torch._dynamo.testing import CompileCounter

for kind in (int, float):
    torch._dynamo.reset()
    counter = CompileCounter()
    fast = torch.compile(lambda x, factor: x * factor, backend=counter)
    for value in range(2, 14):
        fast(torch.ones(2), kind(value))
    assert counter.frame_count == 2
