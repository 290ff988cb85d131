import torch
from torch._dynamo.decorators import mark_dynamic, mark_unbacked, maybe_mark_dynamic
from torch.nn.functional import cross_entropy


# Targets are gathered over a batch that is marked unbacked, through unflatten.
def losses(tokens, entries, logits):
    rows = entries.flatten(0, 1) * 1
    ends = rows.clamp(max=191).unflatten(0, (-1, 3)).flatten(1)
    targets = tokens.gather(1, ends).view_as(rows)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")  # run: AD104>=2.12,<2.15


def marked(mark, **arguments):
    tokens, entries = torch.randint(256, (2, 192)), torch.randint(192, (2, 3, 171))
    for tensor in (tokens, entries):
        mark(tensor, 0, **arguments)
    maybe_mark_dynamic(entries, 2)
    return losses, [(tokens, entries, torch.randn(6, 171, 256))]


def bad():
    return marked(mark_unbacked, shape_id="batch")


# The same batch marked dynamic.
def good():
    return marked(mark_dynamic)
