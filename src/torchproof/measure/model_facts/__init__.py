"""Measures cheap facts about a target in eager, by which `tune` chooses candidates.

Takes a loaded target, a function that runs its calls, and one that builds it again.
Returns plain JSON. An unknown fact is null; `unknown` says why a measurement failed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torchproof.measure.model_facts import structure, time_breakdown
from torchproof.measure.model_facts.structure import Subject

__all__ = ["Subject", "bottleneck", "probe"]

_BUSY = 0.8  # of a step; a GPU that is busy for less waits for launches
_MATMULS = 0.5  # of the time; with more than that, a model is compute-bound
_SMALL_OP = 3.0  # small operations take at most this many times a trivial one
_INSIDE = 0.5  # of a step; with less inside operators, they do not tell the bottleneck
# The facts that each function yields; facts before a failure are kept.
_PROBES: dict[tuple[str, ...], Callable[[Subject], Iterator[dict[str, Any]]]] = {
    ("parameters",): structure.parameters,
    ("step_ms",): time_breakdown.timed,
    ("ops_per_call", "flops_per_call", "host_syncs"): time_breakdown.counted,
    (
        "kernels_per_call",
        "kernel_ms",
        "device_ms",
        "matmul_share",
        "operator_share",
        "operators_us",
    ): time_breakdown.profiled,
    ("trivial_op_us",): time_breakdown.trivial,
    ("varying", "shapes"): structure.shapes,
    ("fingerprint", "blocks", "distinct_modules", "core"): structure.structure,
}


def probe(subject: Subject) -> dict[str, Any]:
    """Returns the facts about a target."""
    facts: dict[str, Any] = {"calls": subject.count}
    unknown: dict[str, str] = {}
    for names, measure in _PROBES.items():
        facts |= dict.fromkeys(names)
        try:
            for new_facts in measure(subject):
                facts |= new_facts
        except Exception as error:  # the other facts are still of use
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            unknown |= {name: reason for name in names if facts[name] is None}
    _clean_up(subject.device)
    facts |= _shares(subject.device, facts)
    facts["bound"], facts["bound_why"] = bottleneck(subject.device, facts)
    return {**facts, "unknown": unknown}


def _shares(device: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Derives shares from the time of a step and its profile."""
    shares: dict[str, Any] = {"busy_share": None, "mean_op_us": None}
    step_ms = facts["step_ms"]
    if device == "cuda" and facts["kernels_per_call"] and step_ms:
        shares["busy_share"] = min(1.0, facts["device_ms"] / step_ms)
    if facts["ops_per_call"] and facts["operators_us"]:
        shares["mean_op_us"] = facts["operators_us"] / facts["ops_per_call"]
    return shares


def _clean_up(device: str) -> None:
    """Frees the memory of discarded targets."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


# -- the bottleneck --------------------------------------------------------------------


def bottleneck(device: str, facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns what bounds the time of a step, and the numbers that show it."""
    if device == "cuda":
        return _bottleneck_on_gpu(facts)
    mean, trivial = facts["mean_op_us"], facts["trivial_op_us"]
    if mean is None or trivial is None:
        return None, "the cost of an operation is not known"
    reason = f"an operation takes {_us(mean)} on average, a trivial one {_us(trivial)}"
    if mean <= _SMALL_OP * trivial:
        return "launch", reason
    inside = facts["operator_share"]
    if inside is None:
        return None, "the profiler saw no operators"
    if inside < _INSIDE:
        return None, f"only {inside:.0%} of the step is spent inside operators"
    return _by_products(facts, reason)


def _bottleneck_on_gpu(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    busy = facts["busy_share"]
    if busy is None:
        return None, "the profiler saw no kernels"
    reason = f"the GPU is busy for {busy:.0%} of the step"
    if busy < _BUSY:
        return (
            "launch",
            f"{reason}, with {facts['kernels_per_call']:.0f} kernels per call",
        )
    return _by_products(facts, reason)


def _by_products(
    facts: Mapping[str, Any], reason: str
) -> tuple[str | None, str | None]:
    share = facts["matmul_share"]
    if share is None:
        return None, f"{reason}; the share of matrix products is not known"
    kind = "compute" if share >= _MATMULS else "memory"
    where = "matrix products, convolutions and attention"
    return kind, f"{reason}; {share:.0%} of the time goes to {where}"


def _us(value: float) -> str:
    return f"{value:.0f} us" if value >= 100 else f"{value:.1f} us"
