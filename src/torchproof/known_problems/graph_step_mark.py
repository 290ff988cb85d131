"""`cudagraph_mark_step_begin` keeps no output alive, although the error suggests it.

It declares that a new step begins, which frees the outputs of the last one.

Workaround: copy what you keep.

Group: graphs
Code: CG301
Needs: cuda
"""

import torch

fast = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
x, failed = torch.ones(8, device="cuda"), False
kept = fast(x)
torch.compiler.cudagraph_mark_step_begin()
fast(x)
try:
    kept.sum().item()
except RuntimeError as failure:
    failed = "overwritten" in str(failure)
assert failed

# The workaround
torch.compiler.cudagraph_mark_step_begin()
kept = fast(x).clone()
torch.compiler.cudagraph_mark_step_begin()
fast(x)
assert kept.sum().item() == 24
