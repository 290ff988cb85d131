"""A function that writes to its input is left out of CUDA graphs.

`reduce-overhead` then means the default mode. Without `TORCH_LOGS=perf_hints` one line
on stderr is all that tells.

Way round: return the result and copy it outside, or mark the memory as static.

Group: graphs
Code: CG311
Reference: https://github.com/pytorch/pytorch/issues/131265
Needs: cuda
"""

import torch
from torch._dynamo.utils import counters


def written(cache, x):
    cache.add_(x)
    return cache * 2


cache, x = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
fast = torch.compile(written, mode="reduce-overhead")
for _ in range(3):
    fast(cache, x)
assert counters["inductor"]["cudagraph_skips"] > 0

# The way round
counters.clear()
torch._dynamo.mark_static_address(cache)
torch._dynamo.reset()
for _ in range(3):
    fast(cache, x)
assert counters["inductor"]["cudagraph_skips"] == 0
