"""Decides which candidates of a target to try for a failure, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from torchproof.packs.repro.candidate import Candidate, Form
from torchproof.packs.repro.graphs.graph_reducer import variants

# Failures that show in a captured graph, because they arise below Dynamo.
_BELOW_DYNAMO = frozenset(
    {
        *("compile_error", "numerics", "hang", "slowdown", "compile_time", "memory"),
        *("cudagraph_skip", "cudagraph_rerecord"),
    }
)
# Failures of Dynamo, which need the Python code.
_IN_DYNAMO = frozenset({"host_sync", "graph_break", "skipped_frame"})


def forms_in_order(kind: str) -> tuple[Form, ...]:
    """Returns the forms to try for a kind of failure.

    A failure of neither kind above needs several calls: the whole program comes first.
    """
    if kind in _BELOW_DYNAMO:
        return ("graph", "program", "frame")
    if kind in _IN_DYNAMO:
        return ("frame", "program", "graph")
    return ("program", "frame", "graph")


def in_order(
    forms: Iterable[Form],
    recorded: Iterable[Candidate],
    programs: Callable[[], Iterator[Candidate]],
) -> Iterator[Candidate]:
    """Yields all graphs with synthetic tensors before any with recorded ones."""
    recorded = list(recorded)
    for form in forms:
        candidates = [each for each in recorded if each.form == form]
        if form == "program":
            yield from programs()
        elif form == "graph":
            for depth in itertools.zip_longest(*map(variants, candidates)):
                yield from filter(None, depth)
        else:
            yield from candidates
