"""`fullgraph=True` does not find the breaks of a run without it.

It also enables the capture of numbers and of data-dependent sizes, so it passes where
the default breaks the graph.

Workaround: look for breaks in a run with the settings that you will use.

Group: diagnosis
Code: GB101
"""

import torch
from torch._dynamo.testing import CompileCounter


def scaled(x):
    return x * x.sum().item()


strict = CompileCounter()
torch.compile(scaled, backend=strict, fullgraph=True)(torch.ones(2))
assert strict.frame_count == 1

torch._dynamo.reset()
plain = CompileCounter()
torch.compile(scaled, backend=plain)(torch.ones(2))
assert plain.frame_count == 2

# The workaround
torch._dynamo.reset()
torch._dynamo.config.capture_scalar_outputs = True
torch.compile(scaled, backend=strict)(torch.ones(2))
assert strict.frame_count == 2
