"""Outputs and gradients of a workload, in eager and compiled by Inductor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchproof.targets.workloads import WORKLOADS

FIXED = [name for name in WORKLOADS if not name.endswith("-original")]


Results = dict[str, list[Tensor]]


def results(
    workload: str,
    *,
    device: str,
    train: bool,
    compiled: bool,
    dtype: torch.dtype | None = None,
) -> Results:
    """Outputs of the first calls; what training leaves, as gradients or as weights.

    With `dtype`, the same weights and inputs are computed with in that precision.
    """
    entry = WORKLOADS[workload]
    fn, calls = entry.make(entry.size_on(device), device=device, train=train)
    if dtype is not None:
        fn, calls = fn.to(dtype), _converted(calls, dtype)
    run = fn
    if compiled and not getattr(type(fn), "compiles_itself", False):
        run = torch.compile(fn)
    outputs: list[Tensor] = []
    with torch.compiler.set_stance("default" if compiled else "force_eager"):
        for call in calls[: 2 if device == "cuda" else 3]:
            output = run(**call) if isinstance(call, dict) else run(*call)
            outputs += floats(output)
            if train and not getattr(type(fn), "trains_itself", False):
                loss = getattr(output, "loss", None)
                (floats_mean(output) if loss is None else loss).backward()
    found = {"outputs": outputs}
    if getattr(type(fn), "trains_itself", False):
        found["weights"] = list(fn.model.parameters())
    elif train:
        found["gradients"] = [p.grad for p in fn.parameters() if p.grad is not None]
    return {kind: [x.detach().float().cpu() for x in found[kind]] for kind in found}


def _converted(calls: Any, dtype: torch.dtype) -> Any:
    def convert(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    return torch.utils._pytree.tree_map(convert, calls)


def floats(output: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]


def floats_mean(output: Any) -> Tensor:
    return torch.stack([x.float().mean() for x in floats(output)]).mean()


def distance(one: Results, other: Results) -> float:
    """The largest relative distance of two tensors that belong together.

    A tensor that is small beside the others of its kind is rounding: it is measured
    against the largest norm among them as well.
    """
    assert one.keys() == other.keys()
    farthest = 0.0
    for kind, theirs in other.items():
        assert theirs and len(theirs) == len(one[kind])
        floor = 1e-3 * max(float(each.norm()) for each in theirs)
        for a, b in zip(one[kind], theirs, strict=True):
            farthest = max(
                farthest, float((a - b).norm()) / max(float(b.norm()), floor)
            )
    return farthest
