"""A break inside a custom `with` block makes torch skip the function.

torch cannot leave such a block and enter it again, so it compiles nothing of the
function.

Workaround: keep the block small, and code that breaks outside it.

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


# The workaround
def outside(x):
    torch._dynamo.graph_break()
    with Section():
        y = x.sin() + 1
    return y.cos()


torch.compile(outside, backend=counter)(torch.randn(4))
assert counter.frame_count == 1
