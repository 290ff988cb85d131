"""A comparison of dynamic sizes cannot be passed to `is_causal`.

It is a symbol, not a bool, and the attention operator does not accept one.

Workaround: choose between two plain values, which is guarded.

Group: breaks
Code: CE704
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def attend(x):
    return scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 1)


def decided(x):
    causal = True if x.shape[2] > 1 else False  # noqa: SIM210
    return scaled_dot_product_attention(x, x, x, is_causal=causal)


def compiles(function):
    fast = torch.compile(function, backend="eager", dynamic=True, fullgraph=True)
    try:
        fast(torch.randn(2, 3, 5, 8))
    except torch._dynamo.exc.Unsupported:
        return False
    return True


assert not compiles(attend)

# The workaround
assert compiles(decided)
