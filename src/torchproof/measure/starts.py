"""Checks by torch's cache statistics that a start labelled cold or warm is one.

In a cold start, a cache may only hit a graph that the same process stored. In a warm
start, there are lookups and every lookup hits. A time that fails the check is refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from torchproof.measure.replies import CacheUse, Facts
from torchproof.records import shapes

_NAMES = {"inductor": "Inductor's cache", "aot_autograd": "AOTAutograd's cache"}


def start_record(label: Literal["cold", "warm"], facts: Facts) -> shapes.Start:
    """Returns a start with its cache statistics, and why its label is refused."""
    cache = facts.cache
    why = None
    if cache is not None:
        check = _why_not_cold if label == "cold" else _why_not_warm
        why = check(facts, cache)
    refused = f"labelled {label}, but {why}" if why else None
    return {
        "label": label,
        "first_call_s": None if refused else facts.first_call_s,
        "imports_s": facts.imports_s,
        "hits": cache.hits if cache else None,
        "misses": cache.misses if cache else None,
        "bypasses": cache.bypasses if cache else None,
        "refused": refused,
    }


def setup_s(start: shapes.Start | None) -> float:
    """The seconds of a start that its first call does not include."""
    known = start or shapes.Start()
    return (known.get("imports_s") or 0.0) + (known.get("later_compile_s") or 0.0)


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
