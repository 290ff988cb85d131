"""A graph break inside a loop makes torch skip the whole function.

Elsewhere a break splits the graph once. In the body of a `for` or `while`, torch
compiles nothing of the function, including the code before and after the loop.

Workaround: move the body of the loop into a separate function.

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


# The workaround
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
