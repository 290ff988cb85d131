"""Cheap facts about a target in eager, from which a search knows what may pay.

Comes in: a loaded target, a pass over its calls, and a way to make it anew. Goes out:
plain JSON. A fact that is not known is null; where looking failed, `unknown` says why.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchproof.measure.model_facts import structure, time_breakdown
from torchproof.measure.model_facts.bottleneck import bound
from torchproof.measure.model_facts.subjects import Subject

__all__ = ["Subject", "probe"]

_TIMES = ("kernels_per_call", "kernel_ms", "device_ms", "matmul_share")
# What each finds is kept, also where it fails in the end.
_LOOKS: dict[tuple[str, ...], Callable[[Subject], Iterator[dict[str, Any]]]] = {
    ("parameters",): structure.parameters,
    ("step_ms",): time_breakdown.timed,
    ("ops_per_call", "flops_per_call", "host_syncs"): time_breakdown.counted,
    (*_TIMES, "operator_share", "operators_us"): time_breakdown.profiled,
    ("trivial_op_us",): time_breakdown.trivial,
    ("varying", "shapes"): structure.shapes,
    ("fingerprint", "blocks", "distinct_modules", "core"): structure.structure,
}


def probe(subject: Subject) -> dict[str, Any]:
    """Everything that is cheap to know."""
    facts: dict[str, Any] = {"calls": subject.count}
    unknown: dict[str, str] = {}
    for names, look in _LOOKS.items():
        facts |= dict.fromkeys(names)
        try:
            for found in look(subject):
                facts |= found
        except Exception as error:  # one fact less is no reason to have none
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            unknown |= {name: told for name in names if facts[name] is None}
    _clean_up(subject.device)
    facts |= _shares(subject.device, facts)
    facts["bound"], facts["bound_why"] = bound(subject.device, facts)
    return {**facts, "unknown": unknown}


def _shares(device: str, facts: dict[str, Any]) -> dict[str, Any]:
    """What follows from a step's time and what was seen in it."""
    found: dict[str, Any] = {"busy_share": None, "mean_op_us": None}
    step_ms = facts["step_ms"]
    if device == "cuda" and facts["kernels_per_call"] and step_ms:
        found["busy_share"] = min(1.0, facts["device_ms"] / step_ms)
    if facts["ops_per_call"] and facts["operators_us"]:
        found["mean_op_us"] = facts["operators_us"] / facts["ops_per_call"]
    return found


def _clean_up(device: str) -> None:
    """The memory of targets that were thrown away is for others."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
