"""Starts, cold and warm: a time is refused where torch's caches contradict its label.

In a cold start a graph can be found in a cache only after the same process put it
there. In a warm start something is looked for, and nothing in vain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_NAMES = {"inductor": "Inductor's cache", "aot_autograd": "AOTAutograd's cache"}


def start_record(label: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A start of an arm, with what torch says of its caches beside it."""
    start: dict[str, Any] = dict.fromkeys(("hits", "misses", "bypasses", "refused"))
    start |= {"label": label, "imports_s": facts["imports_s"]}
    if facts["cache"] is None:
        return start
    start |= {name: facts["cache"][name] for name in ("hits", "misses", "bypasses")}
    why = _not_cold(facts) if label == "cold" else _not_warm(facts)
    return start | {"refused": f"called {label}, but {why}" if why else None}


def _not_cold(facts: Mapping[str, Any]) -> str | None:
    lookups = facts["cache"]["lookups"]
    foreign = sum(hit and not own for _, hit, own in lookups)
    if foreign:
        return (
            f"{foreign} of {len(lookups)} lookups were answered by a cache that was"
            " filled before"
        )
    if folder := facts["cache"]["filled_before"]:
        return f"the cache it used was filled before: {folder}"
    if facts.get("compiled_before"):
        return (
            f"{facts['compiled_before']} graphs were compiled before the call that was"
            " timed, while the target was made"
        )
    return None


def _not_warm(facts: Mapping[str, Any]) -> str | None:
    cache = facts["cache"]
    if not cache["lookups"] and (facts.get("compile_s") or {}).get("inductor"):
        return (
            "Inductor compiled without looking into a cache: caches are switched off,"
            " or they do not take these graphs"
        )
    missed = Counter(name for name, hit, _ in cache["lookups"] if not hit)
    if not missed:
        return None
    asked = Counter(name for name, _, _ in cache["lookups"])
    why = " and ".join(
        f"{count} of {asked[name]} graphs were not in {_NAMES[name]}"
        for name, count in missed.items()
    )
    if missed["aot_autograd"] and not cache["saved"]:
        why += (
            ", which keeps a graph only once its backward is compiled:"
            " run inference under torch.no_grad()"
        )
    return why
