"""Values stay tensors; shapes, dtypes and plain numbers are known while tracing."""

import math

import torch


def every(x, scale: float, table):
    """`.item()` in a text is no call: x.sum().item()"""
    rows = int(x.shape[0]) + len(x) + x.dim()
    if not torch.compiler.is_compiling():
        rows = x.sum().item()  # only without torch.compile
    if x.shape[0] > 100:
        raise ValueError(f"too long: {x.sum().item()}")
    root = math.sqrt(x.shape[-1]) * float(scale)
    steps = [1.0, 2.0][x.shape[0] % 2]
    for _ in range(x.shape[0]):
        steps = steps * 0.5
    array = torch.from_numpy(x.detach().numpy())
    first = x[: x.shape[0] // 2].sum() + max(x.sum(), x.mean())
    return x * root * steps + rows + table[x.long()] + array + first, f"{x.shape}"


def make():
    return every, [(torch.rand(4), 2.0, torch.rand(4))] * 2
