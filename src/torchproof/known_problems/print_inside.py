"""`print` and `logging` of tensors break the graph.

Workaround: `torch._dynamo.config.reorderable_logging_functions`, which prints after the
graph, or `if not torch.compiler.is_compiling()`.

Group: breaks
Code: GB104
Reference: https://github.com/pytorch/pytorch/issues/123288
"""

import torch
from torch._dynamo.testing import CompileCounter


def talking(x):
    y = x + 1
    print("seen", y)
    return y * 2


counter = CompileCounter()
torch.compile(talking, backend=counter)(torch.ones(2))
assert counter.frame_count == 2

# The workaround
torch._dynamo.reset()
counter.clear()
torch._dynamo.config.reorderable_logging_functions.add(print)
torch.compile(talking, backend=counter)(torch.ones(2))
assert counter.frame_count == 1
