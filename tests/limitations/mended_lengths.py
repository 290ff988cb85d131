"""Attention compiles once for lengths over a wide range.

Group: mended
Needs: inductor
"""

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention


def attend(x):
    x = x.unflatten(-1, (2, 8)).transpose(1, 2)
    x = scaled_dot_product_attention(x, x, x, is_causal=True)
    return x.transpose(1, 2).flatten(2).softmax(-1)


counter = CompileCounterWithBackend("inductor")
fast = torch.compile(attend, backend=counter, dynamic=True)
for length in (24, 128, 37, 64, 512):
    x = torch.randn(2, length, 16)
    torch.testing.assert_close(fast(x), attend(x))
assert counter.frame_count == 1
