"""A function that writes to its input is left out of CUDA graphs.

`reduce-overhead` then behaves like the default mode. Without `TORCH_LOGS=perf_hints`,
one line on stderr is the only sign.

Workaround: return the result, and copy it outside the compiled function.

Group: graphs
Code: CG311
Reference: https://github.com/pytorch/pytorch/issues/103985
Needs: cuda
"""

import torch
from torch._dynamo.utils import counters


def skips(function):
    counters.clear()
    cache, x = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    fast = torch.compile(function, mode="reduce-overhead")
    for _ in range(3):
        cache.copy_(fast(cache, x))
    return counters["inductor"]["cudagraph_skips"]


def written(cache, x):
    cache.add_(x)
    return cache * 2


assert skips(written) > 0


# The workaround
def returned(cache, x):
    return (cache + x) * 2


assert skips(returned) == 0
