"""CUDA graphs overwrite what a pending backward still needs.

A CUDA graph tree does not see that autograd holds the saved activations of a graph
whose backward waits while other graphs run.

Workaround: a mode without CUDA graphs, or one graph for the whole step.

Group: graphs
Code: AD102
Upstream: 194124
Needs: cuda
Fixed: 2.15
Unshown: 2.11
"""

import torch
from torch import nn


def gradients(**how):
    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.GELU()).cuda() for _ in range(4)]
    steps = [torch.compile(block, **how) for block in blocks]
    x = torch.randn(64, 256, device="cuda")
    for _ in range(8):
        for block in blocks:
            block.zero_grad()
        y = x
        for step in steps:
            y = step(y).clone()
        y.square().mean().backward()
    return [p.grad.clone() for block in blocks for p in block.parameters()]


def differ(ours, theirs):
    return any(not torch.allclose(a, b, 1e-3, 1e-5) for a, b in zip(ours, theirs))


expected = gradients(backend="eager")
assert differ(gradients(mode="reduce-overhead"), expected)

# The workaround
assert not differ(gradients(mode="default"), expected)
