import torch
from torch import Tensor, nn


# Python decides by the values of tensors.
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


def bad():
    return every, [(torch.rand(4),)] * 2


# Where a test says that a value is a tensor, asking for its truth splits the graph.
class Scaled(nn.Module):
    mode = "size"

    def forward(self, x, scale):
        if not isinstance(scale, Tensor):
            return x * scale
        if scale > 1:  # <- GB102
            x = x + 1
        return self.sized(x)

    def sized(self, x):
        match self.mode:
            case "size":
                count = x.sum()
            case _:
                return x
        if count > 1:  # <- GB102
            x = x * 2
        return x


def bad_2():
    return Scaled(), [(torch.randn(4, 2), torch.tensor(2.0))]


# A generator that branches on data.
def active_rows(x):
    for row in x:
        if row.sum() > 0:  # run: GB102
            yield row


def pool(x):
    x = x * 2
    total = torch.zeros(4)
    for row in active_rows(x):
        total = total + row
    return total


def bad_3():  # run: NC805
    return pool, [(torch.ones(3, 4),)] * 3
