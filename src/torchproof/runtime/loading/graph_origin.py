"""Reports which graphs came from a pack, and why the others were compiled again.

Takes the cache lookups of the build and of this process, returns one line for each
cache miss with the most telling difference in its cache key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchproof.process import forks
from torchproof.runtime.loading.pack_details import Fact, Graph
from torchproof.torch_private import Lookup

_TEXT = 160  # longest text of a fact in a pack: a number, a name, a shape
_DISPLAY_NAMES = {"cpp_runtime_thread_count": "the number of threads"}


class LookupLog:
    """Collects cache lookups from all threads."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self.lookups: list[Lookup] = []

    def note(self, lookup: Lookup) -> None:
        with self._lock:
            self.lookups.append(lookup)

    @property
    def graphs(self) -> list[Lookup]:
        """The latest lookup of each graph."""
        return [*{k.key: k for k in self.lookups if k.cache == "inductor"}.values()]

    @property
    def bypassed(self) -> list[str]:
        return [each.why for each in self.lookups if each.why is not None]


def pack_lookups(lookups: Iterable[Lookup]) -> tuple[Graph, ...]:
    """The lookups for the pack: digests of all facts, and short texts."""
    graphs = {each.key: each for each in lookups if each.cache == "inductor"}
    return tuple(
        Graph(
            str(key),
            {
                name: Fact(digest, text if len(text) <= _TEXT else None)
                for name, (digest, text) in each.facts.items()
            },
        )
        for key, each in graphs.items()
    )


def misses(log: LookupLog, packed: Sequence[Graph]) -> list[str]:
    """One line with the reason for each graph that was compiled here."""
    lines = [f"torch does not cache it: {why}" for why in log.bypassed]
    for lookup in log.graphs:
        line = None if lookup.hit else _explain(lookup, packed)
        if line is not None and line not in lines:
            lines.append(line)
    return lines


def _explain(lookup: Lookup, packed: Sequence[Graph]) -> str:
    if any(each.key == lookup.key for each in packed):
        return "it is in the pack, but torch rejected it: its guards fail here"
    if not packed:
        return "the pack has no graph"
    here = {name: Fact(*fact) for name, fact in lookup.facts.items()}
    nearest = min(packed, key=lambda graph: len(_differing(here, graph.facts)))
    names = _differing(here, nearest.facts)
    if not names:
        return "torch uses another cache key for it, for an unknown reason"
    name = min(names, key=_rank)
    return _describe_difference(name, here.get(name), nearest.facts.get(name))


def _differing(here: Mapping[str, Fact], then: Mapping[str, Fact]) -> list[str]:
    unknown = Fact("", None)
    return [
        name
        for name in {**here, **then}
        if here.get(name, unknown).digest != then.get(name, unknown).digest
    ]


def _rank(name: str) -> int:
    """Orders facts by how well they explain a miss.

    Settings come first; the graph comes last, because every other fact changes it.
    """
    order = (r"fx_kwargs\[is_inference", r".*config|fx_kwargs", r"system|cpp_|torch_")
    for rank, pattern in enumerate((*order, r"example_inputs")):
        if re.match(pattern, name):
            return rank
    return 9 if name == "gm" else 5


def _describe_difference(name: str, here: Fact | None, then: Fact | None) -> str:
    text_here = here.text if here else None
    text_then = then.text if then else None
    if name == "fx_kwargs[is_inference]":
        if text_here == "True":
            return "gradients are off here, but were on at build"
        return "gradients are on here, but were off at build: use torch.no_grad()"
    if name == "gm":
        return "the traced graph differs: the code or its inputs changed"
    if name.startswith("example_inputs"):
        sizes = [_shape(text) for text in (text_here, text_then)]
        if None not in sizes and sizes[0] != sizes[1]:
            return (
                f"shape {sizes[0]} is not in the pack; the nearest graph has {sizes[1]}"
            )
        return f"input {name.removeprefix('example_inputs')} has another type or layout"
    setting = re.sub(r"^\w*config\[(.*)\]$", r"\1", name)
    word = "config " if setting != name else ""
    setting = _DISPLAY_NAMES.get(setting, setting)
    return f"{word}{setting} is {_short(text_here)} here, {_short(text_then)} at build"


def _shape(text: str | None) -> str | None:
    match = re.search(r"shape=torch\.Size\(\[(.*?)\]\)", text or "")
    return f"({match[1]})" if match else None


def _short(text: str | None) -> str:
    if text is None:
        return "another value"
    return text if len(text) <= 60 else f"{text[:57]}..."
