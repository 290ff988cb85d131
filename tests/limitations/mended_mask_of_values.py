"""Assigning a tensor of values through a boolean mask does not cut the graph.

Group: mended
"""

import torch
from torch._dynamo.testing import CompileCounter


def placed(x, mask, values):
    x = x + 1
    x[mask] = values
    return x * 2


counter = CompileCounter()
fast = torch.compile(placed, backend=counter)
answer = fast(torch.zeros(3), torch.tensor([True, False, True]), torch.ones(2) * 5)
assert answer.tolist() == [10, 2, 10] and counter.frame_count == 1
