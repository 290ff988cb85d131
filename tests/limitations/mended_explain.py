"""`torch._dynamo.explain` sees through `torch.compile`.

Group: mended
"""

import torch


def broken(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x + 1


told = torch._dynamo.explain(torch.compile(broken, backend="eager"))(torch.ones(2))
assert told.graph_break_count == 1
