"""A second module with the same structure uses the code of the first.

Group: mended
"""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) + 1


counter = CompileCounter()
for _ in range(4):
    torch.compile(Block(), backend=counter)(torch.ones(2, 4))
assert counter.frame_count == 1
