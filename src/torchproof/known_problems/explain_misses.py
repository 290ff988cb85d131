"""`torch._dynamo.explain` reports -1 breaks if nothing was compiled.

It counts graphs and subtracts one. A function that is skipped completely has none, so
the worst case looks like the best, without a reason.

Workaround: count what is compiled, or read the breaks that torch logs; `torchproof
check` does both.

Group: diagnosis
Code: GB107
"""

import torch
from torch._dynamo.testing import CompileCounter


def steps(x):
    for _ in range(2):
        torch._dynamo.graph_break()
        x = x + 1
    return x


report = torch._dynamo.explain(steps)(torch.ones(2))
assert report.graph_break_count == -1 and not report.break_reasons

# The workaround
counter = CompileCounter()
torch.compile(steps, backend=counter)(torch.ones(2))
assert counter.frame_count == 0
assert sum(torch._dynamo.utils.counters["unimplemented"].values()) > 0
