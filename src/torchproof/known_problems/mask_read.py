"""Reading through a boolean mask breaks the graph.

The size of `x[mask]` depends on values, which tracing does not have.

Workaround: `torch.where` over all elements, or
`torch._dynamo.config.capture_dynamic_output_shape_ops = True`.

Group: breaks
Code: GB103
Reference: https://github.com/pytorch/pytorch/issues/99609
"""

import torch
from torch._dynamo.testing import CompileCounter


def positive(x):
    return (x + 1)[x > 0].sum()


counter, x = CompileCounter(), torch.tensor([-1.0, 2.0, 3.0])
assert torch.compile(positive, backend=counter)(x) == 7
assert counter.frame_count == 2


# The workaround
def without_mask(x):
    return torch.where(x > 0, x + 1, 0.0).sum()


assert torch.compile(without_mask, backend=counter, fullgraph=True)(x) == 7
