"""Blocks that are compiled one by one with `reduce-overhead` overwrite each other.

In inference the output of one block is the input of the next, which records over it.

Workaround: compile the blocks in the default mode and use one graph around the whole
step.

Group: graphs
Needs: cuda
"""

import torch
from torch import nn

import torchproof


class Block(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu() + x


model = nn.Sequential(*(Block(8, 8) for _ in range(3))).cuda().eval()
x, failed = torch.randn(2, 8, device="cuda"), False
with torch.no_grad():
    expected = model(x)
    for block in model:
        block.compile(mode="reduce-overhead")
    try:
        for _ in range(4):
            model(x).sum().item()
    except RuntimeError as failure:
        failed = "overwritten" in str(failure)
assert failed

# The workaround
for block in model:
    block.compile()
graphed = torchproof.graph(model, (x,))
torch.testing.assert_close(graphed(x), expected)
