import inspect
import logging
import math
import os
import random
import time
import torch
import torch.nn.functional as F


# Functions in which all is traced, although each is like one that is not.
logger = logging.getLogger(__name__)
DEBUG = False
SCALE = 2
NAMES = ["a", "b"]
SEEN = [1.0, 2.0]


def branches(x, mask=None, traced: torch.Tensor = False, *, training: bool = True):
    """On shapes, types and settings; choices that stay in the graph."""
    if traced or not training:
        x = x - 1
    if x.shape[0] > 2 and x.dim() == 1 and training:
        x = x + 1
    if mask is not None:
        x = x * mask
    if isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.requires_grad:
        x = x * 1.5
    if DEBUG and x.sum() > 0:
        x = x * 0
    assert x.isfinite().all(), "values must be finite"
    assert x.sum() < 1e9
    assert x.shape[0] > 1 and x.isfinite().all(), "values must be finite"
    x = torch.where(x.sum() > 0, x, -x)
    y = (x > 0) & (x < 100) | ~(x == 0)
    best = max(x.sum(), x.mean()) + min(x.sum(), 2)
    near = torch.isclose(x, x).all()
    return x * y + best + near


def sizes(x):
    """Masks that keep sizes, and sizes that are told."""
    mask = x > 0
    x = x.clone()
    x[mask] = 0.5
    x[~mask] = x.sum()
    x = torch.where(mask, x, 0).masked_fill(x > 9, 1.0)
    x = x.masked_scatter(mask, torch.ones(4))
    labels = mask.long()
    hot = F.one_hot(labels, num_classes=2).sum()
    longer = x.repeat_interleave(2) + x.repeat_interleave(labels + 1, output_size=8)
    return x[labels] + hot + longer.sum() + torch.nonzero_static(x, size=2).sum()


def values(x, scale: float, table):
    """`.item()` in a text is no call: x.sum().item()"""
    rows = int(x.shape[0]) + len(x) + x.dim()
    if not torch.compiler.is_compiling():
        rows = x.sum().item()  # only without torch.compile
        logger.info("eager")
    if x.shape[0] > 100:
        logger.error("bad shape")
        raise ValueError(f"print('too long'): {x.sum().item()}")
    root = math.sqrt(x.shape[-1]) * float(scale)
    steps = [1.0, 2.0][x.shape[0] % 2]
    for _ in range(x.shape[0]):
        steps = steps * 0.5
    array = torch.from_numpy(x.detach().numpy())
    first = x[: x.shape[0] // 2].sum() + max(x.sum(), x.mean())
    return x * root * steps + rows + table[x.long()] + array + first


def texts(x, name: str):
    """Made of shapes and names, and a sort of plain numbers."""
    label = str(x.shape) + repr(x.dtype) + str(name) + f"{x.shape} {name}"
    order = sorted([3, 1, 2])
    return x.sort().values * order[0] + len(label)


def outside(x, started: float):
    path = os.path.join("a", "b")
    noise = random.uniform(0.0, 1.0)
    return x + noise + torch.rand_like(x) + started * 0 + len(path)


def lists(x):
    """Of the file, which are read, and one of the same name inside."""
    own, SEEN_HERE = [], SEEN
    for name in NAMES:
        own.append(x * len(name))
    return inner(torch.stack(own).sum(0) * SCALE) * SEEN_HERE[0]


def inner(x):
    SEEN = []
    SEEN.append(x)
    return torch.stack(SEEN)[0]


def contexts(x):
    with torch.no_grad(), torch.autocast("cpu"):
        y = torch.ones(4, device=x.device)
    before = x.detach().clone()
    signature = inspect.signature(outside)
    return x + y + before + len(signature.parameters)


def energy(x):
    return (x * x).sum()


def positions(x):
    """Expanded inside of one graph they are fine."""
    where = torch.arange(x.shape[0]).expand(2, -1)
    return x * where.float().cos().sum(0)


def divided(x):
    """torch.div of Python integers is a constant."""
    count = torch.div(x.size(0), 2, rounding_mode="trunc")
    return x.reshape(torch.div(x.size(0), 2, rounding_mode="trunc"), -1).sum(0) * count


def every(x, mask, started):
    x = branches(x, mask)
    x = x + sizes(x) + values(x.sigmoid(), 2.0, x) + texts(x, "a")
    x = x + outside(x, started) + lists(x) + contexts(x) + positions(x)
    return divided(x), torch.func.grad(energy)(x).norm()


def good():
    torch.manual_seed(0)
    return every, [(torch.rand(4), torch.ones(4), time.time())] * 2
