"""What a target's time is bound by, told from measured facts alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUSY = 0.8  # of a step: a GPU that computes for less waits for launches
MATMULS = 0.5  # of the time: with more than that, products are what takes long
SMALL_OP = 3.0  # times an operation on almost no data: as long takes a small one
INSIDE = 0.5  # of a step: with less in operators, they do not say what it is bound by


def bound(device: str, facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What a step's time is spent on, and the numbers that say so."""
    if device == "cuda":
        return _bound_on_gpu(facts)
    mean, trivial = facts["mean_op_us"], facts["trivial_op_us"]
    if mean is None or trivial is None:
        return None, "what an operation costs here is not known"
    told = f"an operation takes {_us(mean)} on average, one on no data {_us(trivial)}"
    if mean <= SMALL_OP * trivial:
        return "launch", told
    inside = facts["operator_share"]
    if inside is None:
        return None, "the profiler saw no operators"
    if inside < INSIDE:
        return None, f"only {inside:.0%} of the step is spent inside operators"
    return _by_products(facts, told)


def _bound_on_gpu(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    busy = facts["busy_share"]
    if busy is None:
        return None, "the profiler saw no kernels"
    told = f"the GPU is busy for {busy:.0%} of the step"
    if busy < BUSY:
        return "launch", f"{told}, with {facts['kernels_per_call']:.0f} kernels a call"
    return _by_products(facts, told)


def _by_products(facts: Mapping[str, Any], told: str) -> tuple[str | None, str | None]:
    share = facts["matmul_share"]
    if share is None:
        return None, f"{told}; what it computes is not known"
    kind = "compute" if share >= MATMULS else "memory"
    where = "matrix products, convolutions and attention"
    return kind, f"{told}; {share:.0%} of the time goes to {where}"


def _us(value: float) -> str:
    return f"{value:.0f} us" if value >= 100 else f"{value:.1f} us"
