"""Reduces graph candidates as long as they fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs import cuts, minifier, smaller_shapes
from torchproof.packs.repro.graphs.graph_ir import GraphIR, Input, Values, contiguous
from torchproof.packs.repro.graphs.variants import RecordedGraph, to_candidate

Fails = Callable[[Candidate], bool]

# Bisection needs few attempts and comes first. torch's minifier then gets this share of
# the remaining time, and its result is reduced further.
_MINIFIER_SHARE = 0.35
_SMALL = 8  # nodes: reducing this few is faster than starting torch's minifier


def reduce_graph(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """Returns the smallest failing candidate found by `deadline` (`time.monotonic`)."""
    search = _Search(candidate, fails, deadline)
    _fewer_calls(search)
    search.attempt(cuts.inline(search.graph))
    _bisect(search)
    if search.candidate.size > _SMALL and not search.candidate.files:
        ends = time.monotonic() + _MINIFIER_SHARE * (deadline - time.monotonic())
        minifier.minify(search.best, search.fails, ends)
    _fewer_lines(search)
    _fewer_contexts(search)
    _plainer_inputs(search)
    _smaller_sizes(search)
    return search.candidate


class _Search:
    """The smallest failing candidate so far, and all sources that were tried."""

    def __init__(self, candidate: Candidate, fails: Fails, deadline: float) -> None:
        self.candidate = candidate
        self.best = RecordedGraph.of(candidate)
        self._fails = fails
        self._deadline = deadline
        self._tried = {candidate.source: True}

    @property
    def graph(self) -> GraphIR:
        return self.best.graph

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def attempt(self, graph: GraphIR | None) -> bool:
        """Tries a graph; if it is new and fails, it becomes the best one."""
        if graph is None or self.is_over:
            return False
        recorded, candidate = self._write(graph)
        if candidate.source in self._tried or not recorded.graph.lines:
            return False
        self._tried[candidate.source] = self._fails(candidate)
        if self._tried[candidate.source]:
            self.best, self.candidate = recorded, candidate
        return self._tried[candidate.source]

    def fails(self, graph: GraphIR) -> bool:
        """Whether a graph fails; it becomes the best one only if it is smaller."""
        recorded, candidate = self._write(graph)
        if candidate.source not in self._tried and not self.is_over:
            self._tried[candidate.source] = self._fails(candidate)
        failed = self._tried.get(candidate.source, False)
        if failed and candidate.size < self.candidate.size:
            self.best, self.candidate = recorded, candidate
        return failed

    def _write(self, graph: GraphIR) -> tuple[RecordedGraph, Candidate]:
        recorded = replace(self.best, graph=cuts.prune(graph))
        return recorded, to_candidate(recorded)


def _fewer_calls(search: _Search) -> None:
    for calls in range(1, search.graph.calls):
        if search.attempt(replace(search.graph, calls=calls)):
            return


def _fewer_contexts(search: _Search) -> None:
    for decorator in search.graph.contexts:
        remaining = tuple(one for one in search.graph.contexts if one != decorator)
        search.attempt(replace(search.graph, contexts=remaining))


def _fewer_lines(search: _Search) -> None:
    size = search.graph.size + 1
    while search.graph.size < size and not search.is_over:
        size = search.graph.size
        _bisect(search)
        _cut_runs(search)
        _bypass_lines(search)


def _bisect(search: _Search) -> None:
    """Bisects the graph from both ends."""
    _one_output(search)
    _cut_end(search)
    _cut_start(search)
    _one_output(search)


def _one_output(search: _Search) -> None:
    """Tries single outputs, the last one first because it uses most lines."""
    whole = search.graph
    if len(whole.outputs) == 1:
        return
    if any(
        search.attempt(replace(whole, outputs=(out,)))
        for out in reversed(whole.outputs)
    ):
        return
    for output in whole.outputs:
        remaining = tuple(out for out in search.graph.outputs if out != output)
        if remaining:
            search.attempt(replace(search.graph, outputs=remaining))


def _cut_end(search: _Search) -> None:
    """Bisects for the earliest end at which the graph fails."""
    whole = search.graph
    low, high = 1, len(whole.lines)
    while low < high and not search.is_over:
        middle = (low + high) // 2
        if search.attempt(cuts.keep_first_lines(whole, middle)):
            high = middle
        else:
            low = middle + 1


def _cut_start(search: _Search) -> None:
    """Bisects for the latest start from which the graph fails."""
    whole = search.graph
    low, high = 0, len(whole.lines) - 1
    while low < high and not search.is_over:
        middle = (low + high + 1) // 2
        first = {line.name for line in whole.lines[:middle]}
        if search.attempt(cuts.remove_lines(whole, first)):
            low = middle
        else:
            high = middle - 1


def _cut_runs(search: _Search) -> None:
    """Removes runs of lines, long ones first."""
    length = max(1, len(search.graph.lines) // 2)
    while length:
        at = 0
        while at < len(search.graph.lines) and not search.is_over:
            lines = search.graph.lines[at : at + length]
            run = {line.name for line in lines}
            if not search.attempt(cuts.remove_lines(search.graph, run)):
                at += length
        length //= 2


def _bypass_lines(search: _Search) -> None:
    """Replaces single lines by one of their operands."""
    for name in [line.name for line in search.graph.lines]:
        line = next((one for one in search.graph.lines if one.name == name), None)
        if line is None:
            continue
        for operand in cuts.operands(search.graph, line):
            if search.attempt(cuts.bypass(search.graph, line, operand)):
                break


def _plainer_inputs(search: _Search) -> None:
    """Simplifies all inputs at once, or else one property of one input at a time."""
    plain = tuple(_plainest(entry) for entry in search.graph.inputs)
    if search.attempt(replace(search.graph, inputs=plain)):
        return
    for at in range(len(search.graph.inputs)):
        for other in _plainer(search.graph.inputs[at]):
            inputs = [*search.graph.inputs]
            inputs[at] = other
            search.attempt(replace(search.graph, inputs=tuple(inputs)))


def _plainest(entry: Input) -> Input:
    """Returns a contiguous argument with standard normal numbers."""
    facts = replace(
        entry.facts,
        stride=contiguous(entry.facts.shape),
        requires_grad=False,
        values=_plain_values(entry) or entry.facts.values,
    )
    return Input(entry.name, facts)


def _plainer(entry: Input) -> Iterator[Input]:
    """Yields the input with one property simplified."""
    facts = entry.facts
    if entry.file:
        yield replace(entry, file="")
    if entry.dynamic:
        yield replace(entry, dynamic=())
    if entry.role != "input":
        yield replace(entry, role="input")
    if entry.storage or not facts.is_contiguous:
        dense = replace(facts, stride=contiguous(facts.shape))
        yield replace(entry, facts=dense, storage="", offset=0)
    if facts.requires_grad:
        yield replace(entry, facts=replace(facts, requires_grad=False))
    plain = _plain_values(entry)
    if plain is not None and plain != facts.values:
        yield replace(entry, facts=replace(facts, values=plain))


def _plain_values(entry: Input) -> Values | None:
    is_float = entry.facts.dtype.startswith(("float", "bfloat", "complex"))
    return Values("normal", (0.0, 1.0)) if is_float else None


def _smaller_sizes(search: _Search) -> None:
    for size in smaller_shapes.sizes(search.graph):
        for other in smaller_shapes.smaller(size):
            if any(
                search.attempt(
                    smaller_shapes.shrink(
                        search.graph, size, other, multiples=multiples
                    )
                )
                for multiples in (False, True)
            ):
                break
