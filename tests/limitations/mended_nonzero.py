"""`nonzero` under `fullgraph=True` is one graph, whatever the number of hits.

Group: mended
"""

import torch
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
fast = torch.compile(lambda x: x.nonzero() * 2, backend=counter, fullgraph=True)
for hits in (1, 3):
    assert fast(torch.tensor([1] * hits + [0] * (4 - hits))).shape == (hits, 1)
assert counter.frame_count == 1
