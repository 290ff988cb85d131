"""`torch.compile` of a function under `torch.compiler.disable` compiles it.

Called from other compiled code, such a function stays eager. Passed to `torch.compile`
itself, it silently loses the mark.

Workaround: do not pass it to `torch.compile`.

Group: nothing
"""

import torch
from torch._dynamo.testing import CompileCounter


@torch.compiler.disable
def kept_out(x):
    return x + 1


counter = CompileCounter()
torch.compile(kept_out, backend=counter)(torch.ones(2))
assert counter.frame_count == 1

# The workaround
counter.clear()
torch.compile(lambda x: kept_out(x), backend=counter)(torch.ones(2))
assert counter.frame_count == 0
