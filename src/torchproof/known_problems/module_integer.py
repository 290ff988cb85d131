"""An integer attribute of a module is compiled in as a constant.

A counter in `forward` therefore ends at the recompile limit. An integer argument
becomes dynamic after one recompile.

Workaround: use a tensor, or `torch._dynamo.config.allow_unspec_int_on_nn_module =
True`.

Group: recompiles
Code: RC213
Reference: https://github.com/pytorch/pytorch/issues/128319
"""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter


class Counting(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


counter = CompileCounter()
fast = torch.compile(Counting(), backend=counter)
for _ in range(6):
    fast(torch.ones(2))
assert counter.frame_count == 6

# The workaround
torch._dynamo.reset()
counter.clear()
torch._dynamo.config.allow_unspec_int_on_nn_module = True
for _ in range(6):
    fast(torch.ones(2))
assert counter.frame_count == 2
