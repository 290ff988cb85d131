"""Gradients of slices that scale and shift several norms are never written.

Since torch 2.10, Inductor fuses reductions over rows and columns on a GPU. If the
gradients of the slices of one tensor are such reductions, it forgets to write some of
them. Only large inputs are affected.

Workaround: `unbind()` instead of `chunk()`, or TORCHINDUCTOR_MIX_ORDER_REDUCTION=0.

Group: wrong
Code: AD101
Upstream: 193061, 193103
Needs: cuda
Since: 2.10
Fixed: 2.15
Wrong: 2.11
"""

import torch
from torch.nn.functional import layer_norm


def modulated(x, table):
    a, b, c, d = table.chunk(4, dim=1)
    x = x + layer_norm(x, x.shape[-1:]) * (1 + a) + b
    return x + layer_norm(x, x.shape[-1:]) * (1 + c) + d


def error():
    torch.manual_seed(0)
    x = torch.randn(1, 16384, 1024, device="cuda")
    table = torch.randn(1, 4, 1024, device="cuda", requires_grad=True)
    [expected] = torch.autograd.grad(modulated(x, table).square().mean(), [table])
    step = torch.compile(modulated)
    [found] = torch.autograd.grad(step(x, table).square().mean(), [table])
    return ((found - expected).abs().max() / expected.abs().max()).item()


assert not error() < 1e-2

# The workaround
torch._dynamo.reset()
torch._inductor.config.triton.mix_order_reduction = False
assert error() < 1e-2
