"""`torch.compile` of a function under `torch.compiler.disable` compiles it.

Called from other compiled code such a function stays eager. Given to `torch.compile`
itself, the mark is taken off without a word.

Way round: do not wrap it; what is to stay eager must not be what is compiled.

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

# The way round
counter.clear()
torch.compile(lambda x: kept_out(x), backend=counter)(torch.ones(2))
assert counter.frame_count == 0
