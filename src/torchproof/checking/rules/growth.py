"""What grows from call to call: a history, a cache, a counter, a size.

Takes the recompiles of one function for one guard, whose values show the growth, and
finds the statement that makes it grow.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torchproof.checking.rules.recompile_groups import RecompileGroup
from torchproof.checking.rules.rule import Facts, shorten
from torchproof.records import (
    GraphEvent,
    GuardEvent,
    LimitEvent,
    shown_briefly,
    tree_of,
)

_FEWEST = 3  # values that show a growth rather than a change
_ADDING = {"append", "extend", "insert", "add", "update", "appendleft", "setdefault"}
_JOINING = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "pad"}
_STOPS = {
    "length": ": return the new item and add it outside the compiled function, or keep"
    " a buffer of fixed length",
    "keys": ": return the new item and add it outside the compiled function",
    "size": ": write into a tensor of the final size instead, allocated once",
    "attribute": "",  # the rule of the attribute says what to write instead
    "value": ": count outside the compiled function, or in a tensor",
}


@dataclass(frozen=True)
class Growth:
    """Something grows from call to call; `step` if it is the same in each call."""

    step: int | None

    @property
    def text(self) -> str:
        return f"by {self.step} with each call" if self.step else "from call to call"


def growth(group: RecompileGroup) -> Growth | None:
    """How the value behind a group of recompiles grows; None if it does not."""
    guard = group.first.callers_guard
    if guard is None or guard.cause not in _STOPS:
        return None
    events = list(_same_guard(group))
    values = [e.guard.expected or "" if e.guard else "" for e in events]
    calls = [event.call for event in events]
    if len(values) < _FEWEST or not all(value.isdigit() for value in values):
        return None
    numbers = [int(value) for value in values]
    known = [call for call in calls if call is not None]
    if len(known) != len(calls) or not _rises(numbers) or not _rises(known):
        return None
    if not _until_the_end(events, known, group.facts):
        return None
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    in_turn = known[-1] - known[0] == len(known) - 1
    return Growth(steps.pop() if in_turn and len(steps) == 1 else None)


def _rises(numbers: list[int]) -> bool:
    return all(a < b for a, b in itertools.pairwise(numbers))


def _until_the_end(events: list[GuardEvent], calls: list[int], facts: Facts) -> bool:
    """Whether no later call had a value that was there before."""
    if isinstance(events[-1], LimitEvent):
        return True
    distance = max(b - a for a, b in itertools.pairwise(calls))
    if facts.calls is not None and calls[-1] + distance >= facts.calls:
        return True
    graphs = [e for e in facts.of(GraphEvent) if e.function == events[-1].function]
    runs = [graph.runs for graph in graphs]
    return all(each is not None and each.calls == 1 for each in runs)


def _same_guard(group: RecompileGroup) -> Iterator[GuardEvent]:
    """The recompiles of the same function for the same guard, as torch names it."""
    for event in group.facts.of(GuardEvent):
        same = _about(event) == _about(group.first)
        if same and event.function == group.first.function:
            yield event


def _about(event: GuardEvent) -> tuple[object, ...] | None:
    guard = event.guard
    return None if guard is None else (guard.cause, guard.source, guard.dim)


def how_to_stop(group: RecompileGroup) -> str:
    """The statement that makes it grow, and the edit that stops it; else empty."""
    guard = group.first.callers_guard
    if guard is None or growth(group) is None:
        return ""
    files = [f.file for f in (group.frame, group.first.function) if f is not None]
    if call := group.first.entry_call:
        files.append(call.file)
    for file in dict.fromkeys(files):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.stmt) and _makes_grow(node, guard.source):
                frame, code = group.frame, shorten(ast.unparse(node))
                is_place = frame and (frame.file, frame.line) == (file, node.lineno)
                where = "" if is_place else f" at {shown_briefly(file)}:{node.lineno}"
                return f"`{code}`{where} makes it grow{_STOPS[guard.cause]}"
    return ""


def _makes_grow(node: ast.stmt, source: str) -> bool:
    """Whether a statement adds to what a guard checks."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        adds = isinstance(called, ast.Attribute) and called.attr in _ADDING
        return adds and ast.unparse(called.value) == source  # type: ignore[attr-defined]
    if isinstance(node, ast.AugAssign):
        adds = isinstance(node.op, ast.Add | ast.BitOr)
        return adds and ast.unparse(node.target) == source
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return ast.unparse(node.targets[0]) == source and _adds_to(node.value, source)
    return False


def _adds_to(value: ast.expr, source: str) -> bool:
    """Whether an expression is what it was before, with something added."""
    inner = [ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.expr)]
    if source not in inner:
        return False
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.Add)
    called = value.func if isinstance(value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else ""
    return name in _JOINING or isinstance(value, ast.List | ast.Tuple)
