"""`assert` on a tensor is part of the graph.

`assert condition, "message"` is checked at run time. `assert not condition` still
breaks the graph.

Group: mended
"""

import torch


def checked(x):
    assert (x > 0).all(), "must be positive"
    return x * 2


fast, raised = torch.compile(checked, backend="eager", fullgraph=True), False
assert fast(torch.ones(2)).tolist() == [2, 2]
try:
    fast(-torch.ones(2))
except RuntimeError as failure:
    raised = "must be positive" in str(failure)
assert raised
