import torch
import torch.nn.functional as F


# Results whose sizes depend on values.
def masks(x):
    kept = x[x > 0]  # <- GB103
    x = x.clone()
    x[x > 0.5] += 1  # <- GB103
    return x + kept.sum()


def found(x):
    where = torch.nonzero(x)  # <- GB103
    here = torch.where(x > 0)[0]  # <- GB103
    kinds = x.unique()  # <- GB103
    some = x.masked_select(x > 0)  # <- GB103
    return x + where.sum() + here.sum() + kinds.sum() + some.sum()


def counted(x):
    labels = (x > 0).long()
    counts = torch.bincount(labels)  # <- GB103
    hot = F.one_hot(labels)  # <- GB103
    longer = x.repeat_interleave(labels + 1)  # <- GB103
    return x + counts.sum() + hot.sum() + longer.sum()


def every(x):
    return masks(x) + found(x) + counted(x)


def bad():
    return every, [(torch.tensor([0.1, 0.6, -1.0, 2.0]),)] * 2
