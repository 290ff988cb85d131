"""SP51x: compilation that takes too long for what it compiles."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchproof.checking.measured_events import GraphLinesEvent, LatencyEvent
from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import EventGroup, Facts, Match
from torchproof.checking.rules.speed import Speed, duration, group_of
from torchproof.checking.static import changes
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.source import Source, walk
from torchproof.observe import TracedLine
from torchproof.records import Frame, Severity, place_of

_REPEATS = 16  # fewer iterations are usually layers or heads
_COPIES = 16
_BLOCK_NODES = 4  # smaller modules are not worth a graph of their own
_SHARE = 0.5
_LOOP_S = 2.0
_BLOCKS_S = 10.0
_STEPS = 100  # a compilation shorter than this many eager steps is in proportion
_SOONER = 2.0
_SOONER_S = 2.0
_REGIONAL = "compile each {block} (block.compile()) instead of the whole model"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (
    ast.For,
    ast.While,
    ast.AsyncFor,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True)
class Loop:
    """A loop of the program, and the operations of a graph that come from it."""

    frame: Frame
    nodes: int
    repeats: int


def _loops(event: GraphLinesEvent) -> list[Loop]:
    """The loops that a graph was traced through, the largest first."""
    lines_of: dict[tuple[str, int, str], list[TracedLine]] = defaultdict(list)
    for line in event.graph.lines:
        header = loop_at(line.file, line.line)
        if header is not None:
            lines_of[line.file, header, line.function].append(line)
    loops = [
        Loop(
            frame=Frame(*place),
            nodes=sum(line.nodes for line in lines),
            repeats=max(line.repeats for line in lines),
        )
        for place, lines in lines_of.items()
    ]
    return sorted(loops, key=lambda loop: -loop.nodes)


def loop_at(file: str, line: int) -> int | None:
    """The line of the outermost loop around a line, within the line's function."""
    source = changes.source_of(file)
    return _loop_lines(source).get(line) if source else None


@functools.lru_cache(maxsize=8)
def _loop_lines(source: Source) -> dict[int, int]:
    headers: dict[int, int] = {}

    def visit(node: ast.AST, loop: int | None) -> None:
        for child in ast.iter_child_nodes(node):
            inner = loop
            if isinstance(child, _FUNCTIONS):
                inner = None
                for line in range(child.lineno, (child.end_lineno or 0) + 1):
                    headers.pop(line, None)
            elif loop is None and isinstance(child, _LOOPS):
                inner = child.lineno
                for line in range(child.lineno, (child.end_lineno or 0) + 1):
                    headers[line] = child.lineno
            visit(child, inner)

    visit(source.tree, None)
    return headers


def _in_proportion(event: GraphLinesEvent) -> bool:
    """Whether compiling the graph takes less time than `_STEPS` eager steps."""
    if event.eager_ms is None:
        return False
    return _backend_s(event) < _STEPS * event.eager_ms * 1e-3


def _backend_s(event: GraphLinesEvent) -> float:
    return event.graph.backend_s or 0.0


@dataclass(frozen=True, kw_only=True)
class UnrolledGroup(EventGroup[GraphLinesEvent]):
    """The graphs that one loop was unrolled into, and the largest part of it."""

    loop: Loop

    @property
    def seconds(self) -> float:
        """How long the backend took for all of them."""
        return sum(map(_backend_s, self.events))


class UnrolledLoop(Speed[UnrolledGroup]):
    """A Python loop is unrolled into the graph, which makes compilation slow.

    ## Why
    Dynamo traces every iteration: a loop over 64 time steps puts 64 copies of its body
    into the graph. Compile time grows with the number of iterations, and another number
    of iterations needs another graph.

    ## Bad
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + w @ h)

    ## Good
        h = cell(x[t], h)        # compile the body, and keep the loop outside

    ## Fix safety
    Compiling only the body gives the same values up to rounding. torch's scan and
    while_loop put one copy of the body into the graph; these, torch.nn.RNN, GRU or LSTM
    and a vectorised form are other programs: compare the outputs.
    """

    code = "SP511"
    source_text = (
        "the loop over `{at.expression}` would be unrolled into the graph of"
        " {at.function}"
    )
    reference = torch_pages.COMPILE_TIME
    kind = "compile_time"
    message_text = (
        "`{at.expression}` is unrolled into {loop.nodes} of {nodes} operations;"
        " compiling took {took}"
    )
    cause_text = (
        "Dynamo runs a Python loop while tracing, so each iteration adds its operations"
        " to the graph, and the backend compiles them all"
    )
    advice_text = (
        "compile a function with the loop's body alone, and keep the loop outside of it"
    )
    source_severity = "low"
    nodes = (ast.For,)
    shown_by = ("SP511", "RC201", "RC220", "RC290", "DS60", "SP531")
    calls = 2

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[UnrolledGroup]:
        unrolled: dict[Frame, list[tuple[GraphLinesEvent, Loop]]] = defaultdict(list)
        for event in facts.of(GraphLinesEvent):
            for loop in _loops(event)[:1]:
                if (
                    loop.repeats >= _REPEATS
                    and loop.nodes >= _SHARE * event.graph.nodes
                    and _backend_s(event) >= _LOOP_S
                    and not _in_proportion(event)
                ):
                    unrolled[loop.frame].append((event, loop))
        for frame, pairs in unrolled.items():
            events = tuple(event for event, _ in pairs)
            loop = max((loop for _, loop in pairs), key=lambda each: each.nodes)
            yield UnrolledGroup(
                events=events,
                place=place_of((frame,)),
                facts=facts,
                count=len(events),
                loop=loop,
            )

    def words(self, group: UnrolledGroup) -> dict[str, object]:
        return {
            "loop": group.loop,
            "nodes": max(event.graph.nodes for event in group.events),
            "took": duration(group.seconds),
        }

    def severity(self, group: UnrolledGroup) -> Severity:
        return "medium" if group.seconds >= 2 * _LOOP_S else "low"

    def evidence(self, group: UnrolledGroup) -> Iterable[str]:
        yield f"the body is traced {group.loop.repeats} times"
        for event in group.events:
            yield (
                f"graph {event.graph.graph}: {event.graph.nodes} operations,"
                f" {_backend_s(event):.1f} s in the backend"
            )
        if (eager_ms := group.first.eager_ms) is not None:
            steps = group.seconds / (eager_ms * 1e-3)
            yield f"this equals the time of {steps:.0f} eager calls"

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.For)
        loop = node.iter
        if not isinstance(loop, ast.Call) or at.dotted(loop.func) != "range":
            return
        lengths = any(at.kind(each) is Kind.LENGTH for each in loop.args)
        if lengths and _carries(node, at):
            yield Match(loop)


def _carries(loop: ast.For, at: Flow) -> bool:
    """Whether an iteration uses the result of the one before: `h = f(h, x[:, t])`."""
    stored: dict[str, int] = {}
    for statement in loop.body:
        for node in walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stored.setdefault(node.id, node.lineno)
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.lineno <= stored.get(node.id, 0)
        and at.kind(node).is_tensor
        for statement in loop.body
        for node in walk(statement)
    )


@dataclass(frozen=True, kw_only=True)
class BlocksGroup(EventGroup[GraphLinesEvent]):
    """A graph, and the line that many modules of one class were traced from."""

    blocks: TracedLine


class RepeatedBlocks(Speed[BlocksGroup]):
    """Many blocks of one class are compiled separately within one large graph.

    ## Why
    Dynamo inlines equal blocks one after the other, so each is traced and compiled. One
    compiled block could serve all of them.

    ## Bad
        model = torch.compile(model)          # 48 equal blocks: 48 times the work

    ## Good
        for block in model.blocks:
            block.compile()                   # compiled once, shared by all

    ## Fix safety
    The values are the same up to rounding. Fusion across blocks is lost: `torchproof
    bench --latency` measures the first call and the step.
    """

    code = "SP513"
    reference = torch_pages.REGIONS
    kind = "compile_time"
    message_text = (
        "{line.copies} {line.block} modules are in one graph of {at.first.graph.nodes}"
        " operations; compiling took {took}"
    )
    cause_text = (
        "compiling the whole model inlines every block, and the backend compiles each"
        " as if it were the only one"
    )
    advice_text = _REGIONAL.format(block="{line.block}")
    run_severity = "low"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[BlocksGroup]:
        if facts.of(LatencyEvent):  # SP512 reports the measured times instead
            return
        for event in facts.of(GraphLinesEvent):
            if _backend_s(event) < _BLOCKS_S or _in_proportion(event):
                continue
            for line in event.graph.lines:
                many = line.copies >= _COPIES and line.repeats < _REPEATS
                large = line.nodes >= _BLOCK_NODES * line.copies
                if many and large and line.nodes >= _SHARE * event.graph.nodes:
                    frame = Frame(line.file, line.line, line.function)
                    yield BlocksGroup(
                        events=(event,),
                        place=place_of((frame,)),
                        facts=facts,
                        blocks=line,
                    )
                    break

    def words(self, group: BlocksGroup) -> dict[str, object]:
        return {"line": group.blocks, "took": duration(_backend_s(group.first))}


LatencyGroup = EventGroup[LatencyEvent]


class LateStart(Speed[LatencyGroup]):
    """The first call is much faster if only the repeated block is compiled.

    ## Why
    Equal blocks can share one compiled graph. If the whole model is compiled, each
    block is compiled again.

    ## Bad
        model = torch.compile(model)

    ## Good
        for block in model.blocks:
            block.compile()

    ## Fix safety
    The values are the same up to rounding. Fusion across blocks is lost: `torchproof
    bench --latency` measures the first call and the step.
    """

    code = "SP512"
    parts = ("latency",)
    reference = torch_pages.REGIONS
    kind = "compile_time"
    message_text = (
        "the first call of {named} takes {full}; with only its {at.first.blocks}"
        " {at.first.block_class} blocks compiled, {regional}"
    )
    advice_text = _REGIONAL.format(block="{at.first.block_class}")
    run_severity = "low"
    cause_text = (
        "the {at.first.blocks} blocks are alike and shared one compiled graph; compiled"
        " whole, each is compiled anew"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[LatencyGroup]:
        for event in facts.of(LatencyEvent):
            full, regional = event.full_s, event.regional_s
            sooner = full >= _SOONER * regional and full - regional >= _SOONER_S
            if event.shared and sooner:
                yield group_of(event, facts)

    def words(self, group: LatencyGroup) -> dict[str, object]:
        seconds = {"full": group.first.full_s, "regional": group.first.regional_s}
        shown = {name: duration(each) for name, each in seconds.items()}
        return super().words(group) | shown
