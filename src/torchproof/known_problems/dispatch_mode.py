"""A function whose first call is under a dispatch mode is never compiled.

`FlopCounterMode`, or any other `TorchDispatchMode`, makes torch skip the function
permanently: later calls without the mode run in eager as well.

Workaround: make the first call without the mode, or call `torch._dynamo.reset()` after
it.

Group: nothing
Code: NC805
Reference: https://github.com/pytorch/pytorch/issues/190286
"""

import torch
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode

counter, x = CompileCounter(), torch.ones(2, 2)
fast = torch.compile(lambda x: x @ x + 1, backend=counter)
with FlopCounterMode(display=False):
    fast(x)
fast(x)
assert counter.frame_count == 0

# The workaround
torch._dynamo.reset()
fast(x)
assert counter.frame_count == 1
