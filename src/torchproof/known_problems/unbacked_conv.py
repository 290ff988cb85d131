"""`conv2d` over a batch that is marked unbacked fails in Inductor on the CPU.

The mark promises one graph for every size; the convolution needs the size.

Workaround: `mark_dynamic`, and accept a recompile at batch 1.

Group: shapes
Needs: inductor
"""

import torch
from torch import nn
from torch._dynamo.decorators import mark_dynamic, mark_unbacked

model = nn.Conv2d(3, 4, 3).eval()


def compiles(mark):
    torch._dynamo.reset()
    x = torch.randn(2, 3, 8, 8)
    mark(x, 0)
    try:
        with torch.no_grad():
            torch.compile(model)(x)
    except Exception:
        return False
    return True


assert not compiles(mark_unbacked)

# The workaround
assert compiles(mark_dynamic)
