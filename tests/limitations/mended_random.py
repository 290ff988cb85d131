"""`random.uniform` in a compiled function is traced, and draws as eager does.

Group: mended
"""

import random

import torch


def noisy(x):
    return x + random.uniform(0, 1)


fast = torch.compile(noisy, backend="eager", fullgraph=True)
for seed in range(3):
    random.seed(seed)
    eager = noisy(torch.zeros(1))
    random.seed(seed)
    assert torch.equal(fast(torch.zeros(1)), eager)
