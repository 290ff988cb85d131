"""A custom operator without a fake implementation fails when compiled.

Eager runs it. The compiler has to know the shape of its output without running it.

Workaround: `register_fake`.

Group: fails
Code: CE702
"""

import torch


@torch.library.custom_op("limits::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


fast, failed = torch.compile(lambda x: double(x) + 1, backend="eager"), False
assert double(torch.ones(2)).tolist() == [2, 2]
try:
    fast(torch.ones(2))
except Exception as failure:
    failed = "fake impl" in str(failure)
assert failed

# The workaround
double.register_fake(torch.empty_like)
assert fast(torch.ones(2)).tolist() == [3, 3]
