"""Gradients through a nested region that is called several times are wrong.

Inductor compiles the backward of a `nested_compile_region` once, and may overwrite an
input there that a later use of the same code still needs.

Workaround: no region where gradients are computed.

Group: wrong
Code: AD103
Upstream: 193960, 192840
Needs: inductor
Wrong: 2.11, 2.12.1, 2.13, 2.14.1, 2.15
"""

import torch


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


region = torch.compiler.nested_compile_region(norm)


def chain(block, x, weight):
    for _ in range(3):
        x = block(x @ weight, weight[0]).sin()
    return x.sum()


def error(block):
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, weight = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    [expected] = torch.autograd.grad(chain(norm, x, weight), [weight])
    [found] = torch.autograd.grad(torch.compile(chain)(block, x, weight), [weight])
    return ((found - expected).abs().max() / expected.abs().max()).item()


assert error(region) > 0.1

# The workaround
assert error(norm) < 1e-4
