"""Outputs and gradients of a workload, in eager and compiled by Inductor."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from torchproof.workloads import WORKLOADS

CURED = [name for name in WORKLOADS if not name.endswith("-original")]


def results(workload: str, *, device: str, train: bool, compiled: bool) -> list[Tensor]:
    """The floating-point outputs of the first calls; in training, gradients as well."""
    entry = WORKLOADS[workload]
    make = importlib.import_module(entry.module).make
    fn, calls = make(entry.size_on(device), device=device, train=train)
    run = fn
    if compiled and not getattr(type(fn), "compiles_itself", False):
        run = torch.compile(fn)
    kept: list[Tensor] = []
    with torch.compiler.set_stance("default" if compiled else "force_eager"):
        for call in calls[: 2 if device == "cuda" else 3]:
            output = run(**call) if isinstance(call, dict) else run(*call)
            kept += floats(output)
            if train and not getattr(type(fn), "trains_itself", False):
                loss = getattr(output, "loss", None)
                (floats_mean(output) if loss is None else loss).backward()
    if train and isinstance(fn, torch.nn.Module):
        kept += [p.grad for p in fn.parameters() if p.grad is not None]
    return [each.detach().float().cpu() for each in kept]


def floats(output: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]


def floats_mean(output: Any) -> Tensor:
    return torch.stack([x.float().mean() for x in floats(output)]).mean()


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest relative distance of two results that belong together.

    A tensor that is small beside the others of its kind is rounding: it is measured
    against the largest of all norms as well.
    """
    assert len(one) == len(other) and one
    floor = 1e-3 * max(float(each.norm()) for each in other)
    return max(
        float((a - b).norm()) / max(float(b.norm()), floor)
        for a, b in zip(one, other, strict=True)
    )
