"""A graph break inside a loop makes torch give up on the whole function.

Elsewhere a break costs one cut. In the body of a `for` or `while` it means that nothing
of the function is compiled, also what stands before and after the loop.

Way round: move the body of the loop into a function of its own.

Group: nothing
Code: GB107
Reference: https://github.com/pytorch/pytorch/issues/112824
"""

import torch
from torch._dynamo.testing import CompileCounter


def steps(x):
    y = x.sin() + 1
    for _ in range(3):
        y = y * 2
        torch._dynamo.graph_break()
    return y.cos()


counter = CompileCounter()
torch.compile(steps, backend=counter)(torch.randn(4))
assert counter.frame_count == 0


# The way round
def body(y):
    y = y * 2
    torch._dynamo.graph_break()
    return y


def with_function(x):
    y = x.sin() + 1
    for _ in range(3):
        y = body(y)
    return y.cos()


torch.compile(with_function, backend=counter)(torch.randn(4))
assert counter.frame_count > 0
