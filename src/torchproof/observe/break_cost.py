"""Measures compiled calls: the lines in each graph, the cost of breaks, the overhead.

The hooks are attached before anything is compiled and note each graph. Timers wrap the
graphs only inside `watching()`, so that steps timed outside it are not affected. The
results are records: `costs()`.

Times are host times. On CUDA the time of a graph is the time to launch it, and the cost
of a break that waits for the device includes the wait.
"""

from __future__ import annotations

import contextlib
import functools
import re
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from torchproof.records import Frame, Record, original_name, place_of, schema, whose

if TYPE_CHECKING:
    from torchproof.torch_private import CompiledGraph, Node

Line = tuple[str, int]
Place = tuple[str, int, str]

_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_MOST_LINES = 400
_RESUMED = re.compile(r"torch_dynamo_resume_in_.+_at_(?P<line>\d+)")


@dataclass(frozen=True)
class Gap(Record):
    """The cost of a line with a graph break, in microseconds per call.

    It includes that of the lines `together_with` it, each a file and a number.
    """

    file: str
    line: Annotated[int, schema.Integer]
    us: Annotated[float, schema.Number]
    together_with: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class TracedLine(Record):
    """A line of code and the operations that a graph has from it.

    `repeats` is how often the same operation was traced from the same stack in the same
    module, as in an unrolled loop. `copies` is how many modules of one class, `block`,
    were traced there.
    """

    file: str
    line: Annotated[int, schema.Integer]
    function: str
    nodes: int
    repeats: int
    copies: int
    block: str | None


@dataclass(frozen=True)
class GraphLines(Record):
    """A graph with the lines that it was traced from."""

    graph: str | None  # its compile id
    function: Frame
    nodes: int
    backend_s: float | None
    lines: tuple[TracedLine, ...]


@dataclass(frozen=True)
class BreakCosts(Record):
    """What was measured of compiled calls."""

    graphs: tuple[GraphLines, ...] = ()
    gaps: tuple[Gap, ...] = ()
    overhead_us: Annotated[float | None, schema.Number | None] = None
    measured_calls: int = 0


@dataclass
class _Span:
    """One outermost call of a compiled function: its graphs with begin and end."""

    begin_ns: int
    graphs: list[tuple[int, int, int]] = field(default_factory=list)
    end_ns: int = 0


class BreakCost:
    """Measures compiled calls while it is entered as a context manager."""

    def __init__(self) -> None:
        self._hooks = contextlib.ExitStack()
        self._timers = contextlib.ExitStack()
        self._contexts: list[Any] = []
        self._graphs: list[CompiledGraph] = []
        self._timed = 0  # how many graphs have a timer
        self._conversions = 0
        self._thread: int | None = None  # of the call being measured
        self._depth = 0  # of nested compiled calls
        self._inside = False  # a graph is running
        self._spans: list[_Span] = []
        # By the index of the call: one item for each measured pass.
        self._gaps: dict[int, list[dict[Line, float]]] = defaultdict(list)
        self._overheads: dict[int, list[float | None]] = defaultdict(list)
        # Breaks with no graph between them: only their total time is known.
        self._together: dict[Line, set[Line]] = defaultdict(set)

    # -- hooks -------------------------------------------------------------------------

    def __enter__(self) -> BreakCost:
        self.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def attach(self) -> None:
        """Attaches the hooks; functions compiled earlier are not measured."""
        from torchproof import torch_private
        from torchproof.torch_private import compiled_graphs as graphs

        self._private = graphs
        enter = self._hooks.enter_context
        enter(torch_private.compiled_contexts(self._contexts.append))
        enter(torch_private.frame_callbacks(self._convert))
        enter(graphs.compiled_graphs(self._graphs.append))
        torch_private.never_compile(self._timer(0)(len).__code__)

    def _convert(self, convert: Callable[[], Any], request: object) -> Any:
        self._conversions += 1
        return convert()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Times the graphs of calls made through `call()`."""
        entered = self._private.entered(self._contexts, self._compiled_call)
        try:
            with self._timers, entered:
                yield
        finally:
            self._timers = contextlib.ExitStack()
            self._timed = 0

    @contextlib.contextmanager
    def call(self, index: int) -> Iterator[None]:
        """Measures one call of the target, unless something compiles during it."""
        for number in range(self._timed, len(self._graphs)):
            graph = self._graphs[number]
            timer = self._timer(number)
            self._timers.enter_context(self._private.replaced(graph, timer))
        self._timed = len(self._graphs)
        self._spans = []
        self._depth = 0
        self._inside = False
        self._thread = threading.get_ident()
        before = self._conversions
        try:
            yield
        finally:
            self._thread = None
        if self._conversions == before:
            self._add_times(index)

    def _compiled_call(self) -> Callable[[], None]:
        if threading.get_ident() != self._thread:
            return _nothing
        self._depth += 1
        if self._depth == 1:
            self._spans.append(_Span(time.perf_counter_ns()))
        return self._leave

    def _leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._spans[-1].end_ns = time.perf_counter_ns()

    def _timer(self, number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        clock = time.perf_counter_ns

        def wrap(compiled: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                # A graph inside another graph is part of the outer one.
                if (
                    not self._depth
                    or self._inside
                    or self._thread != threading.get_ident()
                ):
                    return compiled(*args, **kwargs)
                self._inside = True
                begin = clock()
                try:
                    return compiled(*args, **kwargs)
                finally:
                    end = clock()
                    self._inside = False
                    self._spans[-1].graphs.append((number, begin, end))

            return timed

        return wrap

    # -- from times to costs -----------------------------------------------------------

    def _add_times(self, index: int) -> None:
        gaps: dict[Line, float] = defaultdict(float)
        outside: list[float | None] = []
        for span in self._spans:
            for line, nanoseconds in self._breaks(span):
                gaps[line] += nanoseconds / 1e3
            outside.append(self._outside(span))
        self._gaps[index].append(dict(gaps))
        measured = [each for each in outside if each is not None]
        complete = measured and len(measured) == len(outside)
        self._overheads[index].append(sum(measured) if complete else None)

    def _breaks(self, span: _Span) -> Iterator[tuple[Line, int]]:
        """The times between graphs that a break causes, with the line of the break."""
        ends: list[tuple[int | None, int]] = [(None, span.begin_ns)]
        ends += [(number, end) for number, _, end in span.graphs]
        begins: list[tuple[int | None, int]] = [(n, b) for n, b, _ in span.graphs]
        begins.append((None, span.end_ns))
        for (before, gap_begin), (after, gap_end) in zip(ends, begins, strict=True):
            first = self._ended_by(before)
            last = self._resumed_after(after)
            line = first or last
            if line is None:
                continue
            if last is not None and last != line:
                self._together[line].add(last)
            yield line, gap_end - gap_begin

    def _ended_by(self, number: int | None) -> Line | None:
        """The line of the break that ended a graph."""
        if number is None:
            return None
        return _place(self._graphs[number].break_stack)

    def _resumed_after(self, number: int | None) -> Line | None:
        """The line of the break before a graph of a resumed function.

        If the function broke because a function it called did, it is that line.
        """
        if number is None:
            return None
        code = self._graphs[number].code
        resumed = _RESUMED.fullmatch(code.co_name)
        if resumed is None:
            return None
        resumed_at = (
            code.co_filename,
            int(resumed["line"]),
            original_name(code.co_name),
        )
        for graph in self._graphs:
            stack = [(f, n, original_name(name)) for f, n, name in graph.break_stack]
            if resumed_at in stack:
                return _place(graph.break_stack)
        return _place((resumed_at,))

    def _outside(self, span: _Span) -> float | None:
        """The microseconds that a compiled call spends outside its only graph.

        None if there are more graphs: the time between may be eager work.
        """
        if len(span.graphs) != 1 or any(self._breaks(span)):
            return None
        [(_, begin, end)] = span.graphs
        return (span.end_ns - span.begin_ns - (end - begin)) / 1e3

    # -- results -----------------------------------------------------------------------

    def costs(self) -> BreakCosts:
        return BreakCosts(
            graphs=tuple(map(_graph_lines, self._graphs)),
            gaps=self._line_gaps(),
            overhead_us=self._overhead_us(),
            measured_calls=len(self._gaps),
        )

    def _line_gaps(self) -> tuple[Gap, ...]:
        """The cost of each break line in microseconds per call.

        It is the mean over the calls of their medians over the passes. Calls that
        compiled something in every pass were not measured and are not included.
        """
        lines = {line for passes in self._gaps.values() for p in passes for line in p}
        gaps = [
            Gap(
                file,
                line,
                us=self._per_call((file, line)),
                together_with=tuple(sorted(self._together[file, line])),
            )
            for file, line in lines
        ]
        return tuple(sorted(gaps, key=lambda gap: (-gap.us, gap.file, gap.line)))

    def _per_call(self, line: Line) -> float:
        return statistics.fmean(
            statistics.median(each.get(line, 0.0) for each in passes)
            for passes in self._gaps.values()
        )

    def _overhead_us(self) -> float | None:
        """The cost of guards, unpacking and dispatch of one call; None if unknown."""
        calls = [
            statistics.median(each for each in passes if each is not None)
            for passes in self._overheads.values()
            if None not in passes
        ]
        if not calls or len(calls) < len(self._overheads):
            return None
        return statistics.fmean(calls)


def _place(stack: tuple[tuple[str, int, str], ...]) -> Line | None:
    """The line that a finding about this break points to."""
    place = place_of(tuple(Frame(*frame) for frame in stack)).frame
    return (place.file, place.line) if place else None


def _nothing() -> None:
    pass


# -- the lines of a graph --------------------------------------------------------------


def _graph_lines(graph: CompiledGraph) -> GraphLines:
    code = graph.code
    return GraphLines(
        graph.compile_id,
        function=Frame(code.co_filename, code.co_firstlineno, code.co_name),
        nodes=len(graph.nodes),
        backend_s=graph.backend_s,
        lines=tuple(_lines_of(graph.nodes)),
    )


def _lines_of(nodes: Iterable[Node]) -> list[TracedLine]:
    """The lines of the user's and libraries' code, sorted by number of operations.

    A line includes the operations of the functions it calls.
    """
    by_line: dict[Place, list[Node]] = defaultdict(list)
    for node in nodes:
        for place in dict.fromkeys(_places(node.stack or "")):
            by_line[place].append(node)
    # Outer lines come first in a stack, so a stable sort puts them first.
    ordered = sorted(by_line.items(), key=lambda item: -len(item[1]))
    return [_line(place, line_nodes) for place, line_nodes in ordered[:_MOST_LINES]]


def _line(place: Place, nodes: Sequence[Node]) -> TracedLine:
    same = Counter((node.target, node.stack, _innermost(node)) for node in nodes)
    block, copies = _block(nodes)
    return TracedLine(
        *place,
        nodes=len(nodes),
        repeats=max(same.values()),
        copies=copies,
        block=block,
    )


def _innermost(node: Node) -> str:
    return node.modules[-1][0] if node.modules else ""


def _block(nodes: Sequence[Node]) -> tuple[str | None, int]:
    """The class of the outermost modules of which there are several, and how many."""
    deepest = max(len(node.modules) for node in nodes)
    for level in range(deepest):
        paths: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            if len(node.modules) > level:
                path, kind = node.modules[level]
                paths[kind].add(path)
        kind = max(paths, key=lambda name: len(paths[name]))
        if len(paths[kind]) > 1:
            return kind, len(paths[kind])
    return None, 0


@functools.lru_cache(maxsize=4096)
def _places(stack: str) -> tuple[Place, ...]:
    """The user's and libraries' frames of a formatted stack, outermost first."""
    return tuple(
        (file, int(line), original_name(function))
        for file, line, function in _FRAME.findall(stack)
        if whose(file) in {"user", "library"}
    )
