"""Checks by torch's cache statistics that a start labelled cold or warm is one.

In a cold start, a cache may only hit a graph that the same process stored. In a warm
start, there are lookups and every lookup hits. A time that fails the check is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from torchproof.measure.replies import CacheUse, Facts
from torchproof.records import Record

_NAMES = {"inductor": "Inductor's cache", "aot_autograd": "AOTAutograd's cache"}


@dataclass(frozen=True)
class Start(Record):
    """A start with its cache statistics, and why its label is refused."""

    label: Literal["cold", "warm"]
    imports_s: float | None
    hits: int | None = None
    misses: int | None = None
    bypasses: int | None = None
    refused: str | None = None


def start_record(label: Literal["cold", "warm"], facts: Facts) -> Start:
    """Returns the start of a strategy, checked against its label."""
    cache = facts.cache
    if cache is None:
        return Start(label, facts.imports_s)
    why = (
        _why_not_cold(facts, cache) if label == "cold" else _why_not_warm(facts, cache)
    )
    return Start(
        label,
        facts.imports_s,
        hits=cache.hits,
        misses=cache.misses,
        bypasses=cache.bypasses,
        refused=f"labelled {label}, but {why}" if why else None,
    )


def _why_not_cold(facts: Facts, cache: CacheUse) -> str | None:
    lookups = cache.lookups
    foreign = sum(each.hit and not each.own for each in lookups)
    if foreign:
        return (
            f"{foreign} of {len(lookups)} cache lookups hit entries of an earlier"
            " process"
        )
    if folder := cache.filled_before:
        return f"its cache folder had files of an earlier process: {folder}"
    if facts.compiled_before:
        return (
            f"{facts.compiled_before} graphs were compiled before the timed call,"
            " while the target was built"
        )
    return None


def _why_not_warm(facts: Facts, cache: CacheUse) -> str | None:
    if not cache.lookups and (facts.compile_s or {}).get("inductor"):
        return (
            "Inductor compiled without a cache lookup: caches are disabled, or they do"
            " not support these graphs"
        )
    missed = Counter(each.cache for each in cache.lookups if not each.hit)
    if not missed:
        return None
    lookups = Counter(each.cache for each in cache.lookups)
    why = " and ".join(
        f"{count} of {lookups[name]} graphs were not in {_NAMES[name]}"
        for name, count in missed.items()
    )
    if missed["aot_autograd"] and not cache.saved:
        why += (
            ", which stores a graph only once its backward is compiled: run inference"
            " under torch.no_grad()"
        )
    return why
