"""A time limit around `torch.compile` limits nothing.

All the time goes into the first call, and again into each call that recompiles.

Workaround: measure or limit the first call. A thread cannot be stopped, a process can;
`torchproof.compile(model, deadline=...)` runs eager when the time is over.

Group: lazy
Reference: https://github.com/pytorch/pytorch/issues/120764
"""

import time

import torch


def slow_backend(graph, example_inputs):
    time.sleep(0.5)
    return graph


began = time.perf_counter()
fast = torch.compile(lambda x: x + 1, backend=slow_backend)
assert time.perf_counter() - began < 0.4

# The workaround
began = time.perf_counter()
fast(torch.ones(2))
assert time.perf_counter() - began > 0.4
