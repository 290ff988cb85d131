"""Which graphs came out of a pack, and why others did not.

Comes in: what torch looked up while the pack was made, and while it was loaded. Goes
out: counts, and for each graph that was not found the first fact that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torchproof.process import forks
from torchproof.torch_private import Lookup

FILE = "graphs.json"
_TEXT = 160  # as much of a fact as is kept: a number, a name, a shape
_CALLED = {"cpp_runtime_thread_count": "the number of threads"}

PackedGraphs = list[dict[str, Any]]


class LookupLog:
    """The lookups of a while, from whatever thread."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self.lookups: list[Lookup] = []

    def note(self, lookup: Lookup) -> None:
        with self._lock:
            self.lookups.append(lookup)

    @property
    def graphs(self) -> list[Lookup]:
        """The latest lookup of each graph's code."""
        return [*{k.key: k for k in self.lookups if k.cache == "inductor"}.values()]

    @property
    def bypassed(self) -> list[str]:
        return [each.why for each in self.lookups if each.why is not None]


def pack_lookups(seen: Iterable[Lookup]) -> PackedGraphs:
    """What a pack keeps of the lookups: hashes, and texts where they are short."""
    kept = {each.key: each for each in seen if each.cache == "inductor"}
    return [
        {
            "key": each.key,
            "facts": {
                name: [digest, text if len(text) <= _TEXT else None]
                for name, (digest, text) in each.facts.items()
            },
        }
        for each in kept.values()
    ]


def misses(seen: LookupLog, known: PackedGraphs) -> list[str]:
    """One line for each graph that was compiled here, the reason in words."""
    found = [f"torch does not cache it: {why}" for why in seen.bypassed]
    for lookup in seen.graphs:
        line = None if lookup.hit else _explained(lookup, known)
        if line is not None and line not in found:
            found.append(line)
    return found


def _explained(lookup: Lookup, known: PackedGraphs) -> str:
    if any(each["key"] == lookup.key for each in known):
        return "it is in the pack, and torch did not take it: its guards do not hold"
    if not known:
        return "the pack has no graph"
    nearest = min((_differing(lookup, e["facts"]) for e in known), key=len)
    if not nearest:
        return "torch looks for it under another key, for a reason it does not tell"
    name = min(nearest, key=lambda each: (_rank(each), nearest.index(each)))
    best = next(e for e in known if _differing(lookup, e["facts"]) == nearest)
    then = best["facts"].get(name)
    return _words(name, lookup.facts.get(name), then)


def _differing(lookup: Lookup, facts: Mapping[str, Any]) -> list[str]:
    names = [*lookup.facts, *(name for name in facts if name not in lookup.facts)]
    return [
        name
        for name in names
        if (lookup.facts.get(name) or [None])[0] != (facts.get(name) or [None])[0]
    ]


def _rank(name: str) -> int:
    """Settings explain what follows from them; the graph is what all else changes."""
    order = (r"fx_kwargs\[is_inference", r".*config|fx_kwargs", r"system|cpp_|torch_")
    for rank, pattern in enumerate((*order, r"example_inputs")):
        if re.match(pattern, name):
            return rank
    return 9 if name == "gm" else 5


def _words(name: str, here: Any, then: Any) -> str:
    text_here = here[1] if here else None
    text_then = then[1] if then else None
    if name == "fx_kwargs[is_inference]":
        if text_here == "True":
            return "gradients are off here, and were on when it was made"
        return "gradients are on here, and were off when it was made: torch.no_grad()"
    if name == "gm":
        return "the traced graph is another one: the code, or what it depends on"
    if name.startswith("example_inputs"):
        sizes = [_shape(text) for text in (text_here, text_then)]
        if None not in sizes and sizes[0] != sizes[1]:
            return f"shape {sizes[0]} is not in the pack, which has {sizes[1]}"
        return f"input {name.removeprefix('example_inputs')} is of another kind"
    setting = re.sub(r"^\w*config\[(.*)\]$", r"\1", name)
    word = "config " if setting != name else ""
    setting = _CALLED.get(setting, setting)
    return f"{word}{setting} is {_short(text_here)} here, {_short(text_then)} at build"


def _shape(text: str | None) -> str | None:
    found = re.search(r"shape=torch\.Size\(\[(.*?)\]\)", text or "")
    return f"({found[1]})" if found else None


def _short(text: str | None) -> str:
    if text is None:
        return "another"
    return text if len(text) <= 60 else f"{text[:57]}..."
