"""Graph candidates made smaller, as long as they fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.graphs import cuts, minifier, smaller_shapes
from torchproof.packs.repro.graphs.graph_ir import GraphIR, Input, Values, contiguous
from torchproof.packs.repro.graphs.variants import RecordedGraph, to_candidate

Fails = Callable[[Candidate], bool]

# Of the time there is. Halves come first, since they take a few tries; torch's minifier
# gets what is left, and that is looked at again.
_TORCHS_SHARE = 0.35
_SMALL = 8  # nodes: torch's minifier takes longer to start than this takes to reduce


def reduce_graph(candidate: Candidate, fails: Fails, deadline: float) -> Candidate:
    """The smallest candidate found that still fails; `deadline` of the monotonic clock.

    After it no candidate is tried any more, and the smallest so far is returned.
    """
    search = _Search(candidate, fails, deadline)
    _fewer_calls(search)
    search.attempt(cuts.inlined(search.graph))
    _halves(search)
    if search.candidate.size > _SMALL and not search.candidate.files:
        ends = time.monotonic() + _TORCHS_SHARE * (deadline - time.monotonic())
        minifier.minify(search.best, search.fails, ends)
    _fewer_lines(search)
    _fewer_surroundings(search)
    _plainer_inputs(search)
    _smaller_sizes(search)
    return search.candidate


class _Search:
    """The best candidate so far, and every text that was tried."""

    def __init__(self, candidate: Candidate, fails: Fails, deadline: float) -> None:
        self.candidate = candidate
        self.best = RecordedGraph.of(candidate)
        self._fails, self._deadline = fails, deadline
        self._tried = {candidate.source: True}

    @property
    def graph(self) -> GraphIR:
        return self.best.graph

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def attempt(self, graph: GraphIR | None) -> bool:
        """Whether it fails as well and was not tried before; then it is the best."""
        if graph is None or self.is_over:
            return False
        recorded, candidate = self._written(graph)
        if candidate.source in self._tried or not recorded.graph.lines:
            return False
        self._tried[candidate.source] = self._fails(candidate)
        if self._tried[candidate.source]:
            self.best, self.candidate = recorded, candidate
        return self._tried[candidate.source]

    def fails(self, graph: GraphIR) -> bool:
        """Whether it fails, tried before or not; only a smaller one is the best."""
        recorded, candidate = self._written(graph)
        if candidate.source not in self._tried and not self.is_over:
            self._tried[candidate.source] = self._fails(candidate)
        found = self._tried.get(candidate.source, False)
        if found and candidate.size < self.candidate.size:
            self.best, self.candidate = recorded, candidate
        return found

    def _written(self, graph: GraphIR) -> tuple[RecordedGraph, Candidate]:
        recorded = replace(self.best, graph=cuts.pruned(graph))
        return recorded, to_candidate(recorded)


def _fewer_calls(search: _Search) -> None:
    for calls in range(1, search.graph.calls):
        if search.attempt(replace(search.graph, calls=calls)):
            return


def _fewer_surroundings(search: _Search) -> None:
    for decorator in search.graph.under:
        left = tuple(one for one in search.graph.under if one != decorator)
        search.attempt(replace(search.graph, under=left))


def _fewer_lines(search: _Search) -> None:
    size = search.graph.size + 1
    while search.graph.size < size and not search.is_over:
        size = search.graph.size
        _halves(search)
        _no_chunks(search)
        _bypasses(search)


def _halves(search: _Search) -> None:
    """From both ends, in steps that halve what is left to try."""
    _one_output(search)
    _no_suffix(search)
    _no_prefix(search)
    _one_output(search)


def _one_output(search: _Search) -> None:
    """One output is enough for most failures, and the last one comes of most lines."""
    whole = search.graph
    if len(whole.outputs) == 1:
        return
    if any(
        search.attempt(replace(whole, outputs=(out,)))
        for out in reversed(whole.outputs)
    ):
        return
    for output in whole.outputs:
        left = tuple(out for out in search.graph.outputs if out != output)
        if left:
            search.attempt(replace(search.graph, outputs=left))


def _no_suffix(search: _Search) -> None:
    """The earliest end at which it fails, taken for a single turning point."""
    whole, low, high = search.graph, 1, len(search.graph.lines)
    while low < high and not search.is_over:
        middle = (low + high) // 2
        if search.attempt(cuts.ending_at(whole, middle)):
            high = middle
        else:
            low = middle + 1


def _no_prefix(search: _Search) -> None:
    """The latest beginning from which it fails, its operands being inputs."""
    whole, low, high = search.graph, 0, len(search.graph.lines) - 1
    while low < high and not search.is_over:
        middle = (low + high + 1) // 2
        gone = {line.name for line in whole.lines[:middle]}
        if search.attempt(cuts.without(whole, gone)):
            low = middle
        else:
            high = middle - 1


def _no_chunks(search: _Search) -> None:
    """Runs of lines taken out, long ones first."""
    length = max(1, len(search.graph.lines) // 2)
    while length:
        at = 0
        while at < len(search.graph.lines) and not search.is_over:
            chunk = search.graph.lines[at : at + length]
            gone = {line.name for line in chunk}
            if not search.attempt(cuts.without(search.graph, gone)):
                at += length
        length //= 2


def _bypasses(search: _Search) -> None:
    """Single lines replaced by an operand of theirs."""
    for name in [line.name for line in search.graph.lines]:
        line = next((one for one in search.graph.lines if one.name == name), None)
        if line is None:
            continue
        for operand in cuts.operands(search.graph, line):
            if search.attempt(cuts.bypassed(search.graph, line, operand)):
                break


def _plainer_inputs(search: _Search) -> None:
    """All inputs as plain as can be, else each as plain as it may."""
    plain = tuple(_plainest(entry) for entry in search.graph.inputs)
    if search.attempt(replace(search.graph, inputs=plain)):
        return
    for at in range(len(search.graph.inputs)):
        for other in _plainer(search.graph.inputs[at]):
            inputs = [*search.graph.inputs]
            inputs[at] = other
            search.attempt(replace(search.graph, inputs=tuple(inputs)))


def _plainest(entry: Input) -> Input:
    """Made of plain numbers, dense, an argument of its own."""
    facts = replace(
        entry.facts,
        stride=contiguous(entry.facts.shape),
        requires_grad=False,
        values=_plain_values(entry) or entry.facts.values,
    )
    return Input(entry.name, facts)


def _plainer(entry: Input) -> Iterator[Input]:
    """The entry with one thing less about it."""
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
                    smaller_shapes.shrunk(
                        search.graph, size, other, multiples=multiples
                    )
                )
                for multiples in (False, True)
            ):
                break
