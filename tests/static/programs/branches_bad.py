"""Python decides by the values of tensors."""

import torch


def confident(p):
    return p.max() > 0.5


def chosen(x):
    if x.sum() > 0:  # <- GB102
        x = x + 1
    y = x if x.mean() > 0 else -x  # <- GB102
    if confident(x):  # <- GB102
        y = y * 2
    return y


def repeated(x):
    while x.sum() < 4:  # <- GB102
        x = x + 1
    return x


def checked(x):
    assert not x.isnan().any(), "nan"  # <- GB102
    assert x.isfinite().all(), f"bad values in {tuple(x.shape)}"  # <- GB102
    return x


def ranged(x):
    if 0 < x.sum() < 100:  # <- GB102
        x = x * 2
    return x


def member(x):
    if x.argmax() in (0, 1):  # <- GB102
        x = x + 1
    return x


def rows(x):
    kept = [row for row in x.view(2, 2) if row.sum() > -9]  # <- GB102
    return torch.stack(kept).flatten()


def compared(x):
    if torch.allclose(x, x):  # <- GB102
        x = x + 1
    return x


def all_of(x):
    return x * any(x > 0)  # <- GB102


def every(x):
    x = chosen(x) + checked(x)
    x = x + ranged(x)
    x = x + member(x)
    x = x + rows(x)
    x = x + compared(x)
    x = x + all_of(x)
    return repeated(x)


def make():
    return every, [(torch.rand(4),)] * 2
