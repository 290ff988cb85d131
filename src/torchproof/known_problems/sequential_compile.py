"""`nn.Sequential(...).compile()` compiles nothing.

The call succeeds and the model runs, in eager. Nothing is logged.

Workaround: `torch.compile(model)`, or `compile()` of a module with its own forward.

Group: nothing
Code: NC805
"""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
model.compile(backend=counter)
model(torch.randn(2, 4))
assert counter.frame_count == 0

# The workaround
torch.compile(model, backend=counter)(torch.randn(2, 4))
assert counter.frame_count == 1
