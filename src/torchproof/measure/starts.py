"""Checks by torch's cache statistics that a start labelled cold or warm is one.

In a cold start, a cache may only hit a graph that the same process stored. In a warm
start, there are lookups and every lookup hits. A time that fails the check is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_NAMES = {"inductor": "Inductor's cache", "aot_autograd": "AOTAutograd's cache"}


def start_record(label: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a start with its cache statistics, and why its label is refused."""
    start: dict[str, Any] = dict.fromkeys(("hits", "misses", "bypasses", "refused"))
    start |= {"label": label, "imports_s": facts["imports_s"]}
    if facts["cache"] is None:
        return start
    start |= {name: facts["cache"][name] for name in ("hits", "misses", "bypasses")}
    why = _why_not_cold(facts) if label == "cold" else _why_not_warm(facts)
    return start | {"refused": f"labelled {label}, but {why}" if why else None}


def _why_not_cold(facts: Mapping[str, Any]) -> str | None:
    lookups = facts["cache"]["lookups"]
    foreign = sum(hit and not own for _, hit, own in lookups)
    if foreign:
        return (
            f"{foreign} of {len(lookups)} cache lookups hit entries of an earlier"
            " process"
        )
    if folder := facts["cache"]["filled_before"]:
        return f"its cache folder had files of an earlier process: {folder}"
    if facts.get("compiled_before"):
        return (
            f"{facts['compiled_before']} graphs were compiled before the timed call,"
            " while the target was built"
        )
    return None


def _why_not_warm(facts: Mapping[str, Any]) -> str | None:
    cache = facts["cache"]
    if not cache["lookups"] and (facts.get("compile_s") or {}).get("inductor"):
        return (
            "Inductor compiled without a cache lookup: caches are disabled, or they do"
            " not support these graphs"
        )
    missed = Counter(name for name, hit, _ in cache["lookups"] if not hit)
    if not missed:
        return None
    lookups = Counter(name for name, _, _ in cache["lookups"])
    why = " and ".join(
        f"{count} of {lookups[name]} graphs were not in {_NAMES[name]}"
        for name, count in missed.items()
    )
    if missed["aot_autograd"] and not cache["saved"]:
        why += (
            ", which stores a graph only once its backward is compiled: run inference"
            " under torch.no_grad()"
        )
    return why
