"""A loss is wrong, silently, for targets gathered over a batch that is marked unbacked.

Inductor on the CPU reads other targets than eager if the size of the batch is unknown
and the indices went through `unflatten`. Backend `aot_eager` is right.

Workaround: `mark_dynamic` instead of `mark_unbacked`.

Group: wrong
Code: AD104
Needs: inductor
Since: 2.12
Fixed: 2.15
Wrong: 2.12.1, 2.13, 2.14.1
Right: 2.11, 2.15
"""

import torch
from torch._dynamo.decorators import mark_dynamic, mark_unbacked, maybe_mark_dynamic
from torch.nn.functional import cross_entropy


def losses(tokens, entries, logits):
    rows = entries.flatten(0, 1) * 1
    ends = rows.clamp(max=191).unflatten(0, (-1, 3)).flatten(1)
    targets = tokens.gather(1, ends).view_as(rows)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def error(mark, **more):
    torch._dynamo.reset()
    tokens, entries = torch.randint(256, (2, 192)), torch.randint(192, (2, 3, 171))
    for tensor in (tokens, entries):
        mark(tensor, 0, **more)
    maybe_mark_dynamic(entries, 2)
    call = tokens, entries, torch.randn(6, 171, 256)
    return (torch.compile(losses)(*call) - losses(*call)).abs().max().item()


assert error(mark_unbacked, shape_id="batch") > 1

# The workaround
assert error(mark_dynamic) < 1e-4
