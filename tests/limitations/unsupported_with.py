"""A break inside a `with` block of one's own makes torch give up on the function.

torch cannot leave such a block and enter it again, so nothing of the function is
compiled.

Way round: keep the block small and what breaks outside of it.

Group: nothing
Code: GB107
"""

import torch
from torch._dynamo.testing import CompileCounter


class Section:
    def __enter__(self):
        return self

    def __exit__(self, *failure):
        return False


def inside(x):
    with Section():
        torch._dynamo.graph_break()
        y = x.sin() + 1
    return y.cos()


counter = CompileCounter()
torch.compile(inside, backend=counter)(torch.randn(4))
assert counter.frame_count == 0


# The way round
def outside(x):
    torch._dynamo.graph_break()
    with Section():
        y = x.sin() + 1
    return y.cos()


torch.compile(outside, backend=counter)(torch.randn(4))
assert counter.frame_count == 1
