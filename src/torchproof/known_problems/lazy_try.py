"""`try` around `torch.compile` catches nothing, because compiling happens later.

`torch.compile(f)` wraps and returns. A failure happens at the first call, outside the
`try`.

Workaround: guard the first call, for each shape; `torchproof.compile` does.

Group: lazy
"""

import torch


def backend(graph, example_inputs):
    raise RuntimeError("no compiler here")


def f(x):
    return x + 1


try:
    fast, caught = torch.compile(f, backend=backend), False
except Exception:
    caught = True
assert not caught

# The workaround
try:
    fast(torch.ones(2))
except Exception as failure:
    caught, fast = "no compiler here" in str(failure), f
assert caught and fast(torch.ones(2)).tolist() == [2, 2]
