"""`fullgraph=True` raises if nothing at all was compiled.

Group: mended
Reference: https://github.com/pytorch/pytorch/pull/177809
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

fast = torch.compile(lambda x: x @ x, backend="eager", fullgraph=True)
raised = False
try:
    with FlopCounterMode(display=False):
        fast(torch.ones(2, 2))
except RuntimeError as failure:
    raised = "no compiled frames" in str(failure)
assert raised
