"""A call with -0.0 runs the code that was compiled for 0.0, or the reverse.

The guard on a float argument compares with `==`, and -0.0 == 0.0.

Workaround: a tensor instead of the float.

Group: stale
Code: AD105
Upstream: 192604
Fixed: 2.15
Wrong: 2.11, 2.12.1, 2.13, 2.14.1
Right: 2.15
"""

import torch


def divided(x, by):
    return x / by


x = torch.ones(3)
compiled = torch.compile(divided, backend="eager")
assert torch.equal(compiled(x, 0.0), divided(x, 0.0))
assert not torch.equal(compiled(x, -0.0), divided(x, -0.0))

# The workaround
for by in (torch.tensor(0.0), torch.tensor(-0.0)):
    assert torch.equal(compiled(x, by), divided(x, by))
