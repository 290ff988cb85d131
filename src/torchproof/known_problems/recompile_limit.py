"""After eight compilations of one function torch runs it in eager.

A guard on something that changes at every call fails eight times. From then on a call
costs as much as eager plus the guard checks. torch logs one warning.

Workaround: make what changes a tensor; to notice in time, use
`torch._dynamo.config.error_on_recompile` or `torch.compiler.set_stance`.

Group: recompiles
Code: RC290
Reference: https://github.com/pytorch/pytorch/issues/163329
"""

import torch
from torch._dynamo.testing import CompileCounter


def scaled(x, names):
    return x * len(names)


counter = CompileCounter()
fast = torch.compile(scaled, backend=counter)
for length in range(20):
    fast(torch.ones(2), ["name"] * length)
assert counter.frame_count == torch._dynamo.config.recompile_limit == 8


# The workaround
def by_tensor(x, factor):
    return x * factor


counter.clear()
fast = torch.compile(by_tensor, backend=counter)
for length in range(20):
    fast(torch.ones(2), torch.tensor(length))
assert counter.frame_count == 1
