"""`backward()` inside a compiled function breaks the graph.

A training step compiled as one function is split into the forward, an eager backward,
and the rest.

Workaround: compile forward and loss; torch compiles their backward as well.

Group: breaks
Code: GB110
"""

import torch
from torch._dynamo.testing import CompileCounter

weight = torch.ones(2, requires_grad=True)


def step(x):
    loss = (weight * x).sum()
    loss.backward()
    return loss.detach() * 2


counter = CompileCounter()
torch.compile(step, backend=counter)(torch.ones(2))
assert counter.frame_count == 2


# The workaround
def loss_of(x):
    return (weight * x).sum()


counter.clear()
torch.compile(loss_of, backend=counter, fullgraph=True)(torch.ones(2)).backward()
assert counter.frame_count == 1 and weight.grad is not None
