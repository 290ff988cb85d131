"""A float learning rate that changes at every step does not recompile every time.

It recompiles once and is then an input of the graph. The advice to make it a tensor to
avoid recompile storms is out of date.

Group: mended
"""

import torch
from torch._dynamo.testing import CompileCounter

weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
optimizer, counter = torch.optim.AdamW([weight], lr=0.1), CompileCounter()
step = torch.compile(optimizer.step, backend=counter)
for _ in range(12):
    step()
    optimizer.param_groups[0]["lr"] *= 0.9
assert counter.frame_count <= 3
