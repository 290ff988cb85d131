"""`optimizer.step()` cannot be part of a larger compiled function.

torch puts a graph break in front of each optimizer's step, which is compiled separately
from its caller. With `fullgraph=True` that is an error.

Workaround: compile the step separately.

Group: breaks
Code: CE704
"""

import torch
from torch._dynamo.testing import CompileCounter

weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
optimizer, counter = torch.optim.SGD([weight], lr=0.1), CompileCounter()


def update():
    optimizer.step()
    return weight * 2


refused = False
try:
    torch.compile(update, backend=counter, fullgraph=True)()
except torch._dynamo.exc.Unsupported:
    refused = True
assert refused and counter.frame_count == 0

# The workaround
torch.compile(optimizer.step, backend=counter)()
assert counter.frame_count == 1
