"""The next call overwrites the outputs of `reduce-overhead`.

Outputs live in the memory of a CUDA graph. While torch warms up and records, a later
use raises "accessing tensor output of CUDAGraphs that has been overwritten by a
subsequent run".

Workaround: copy what you keep, outside the compiled function.

Group: graphs
Code: CG301
Reference: https://github.com/pytorch/pytorch/issues/158551
Needs: cuda
"""

import torch

fast = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
x, failed = torch.ones(8, device="cuda"), False
kept = fast(x)
fast(x)
try:
    kept.sum().item()
except RuntimeError as failure:
    failed = "overwritten" in str(failure)
assert failed

# The workaround
kept = fast(x).clone()
fast(x)
assert kept.sum().item() == 24
