"""Once recorded, a CUDA graph overwrites earlier outputs without an error.

The error of the warm-up no longer occurs: a tensor that was kept has the values of a
later call.

Workaround: copy what you keep; `torchproof check --effort full` finds such tensors, and
`torchproof.step` copies them.

Group: graphs
Code: CG301
Needs: cuda
"""

import torch

fast = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
ones, fives = (torch.full((8,), value, device="cuda") for value in (1.0, 5.0))
for _ in range(4):
    fast(ones)
kept = fast(ones)
fast(fives)
assert kept.tolist() == [11] * 8

# The workaround
kept = fast(ones).clone()
fast(fives)
assert kept.tolist() == [3] * 8
