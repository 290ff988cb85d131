"""Which sizes vary between the calls of a compiled function, and the marks for them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from torchproof.checking.rules.advice import written_marks
from torchproof.checking.rules.recompile_groups import RecompileGroup, call_frame
from torchproof.checking.rules.rule import PROSE, expression_of
from torchproof.checking.rules.shapes import fixed_sizes
from torchproof.checking.static import changes
from torchproof.records import (
    Argument,
    Call,
    CompileEvent,
    GraphEvent,
    GuardEvent,
    Mark,
    Remedy,
    marking,
    varying,
    whose,
)

_SIMPLE = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return
_SCOPES = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class VaryingSize(NamedTuple):
    """One argument, its dimension, and the sizes it had."""

    argument: Argument
    dim: int
    seen: tuple[int, ...] = ()


class _Site(NamedTuple):
    """One line that calls the compiled function, and the sizes that vary there."""

    call: Call
    sizes: tuple[VaryingSize, ...]

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(
            Mark(argument.words, dim, "maybe_mark_dynamic")
            for argument, dim, _ in self.sizes
        )


def marks_of_target(group: RecompileGroup) -> tuple[Mark, ...]:
    """Marks for the arguments that torchproof passes to a target, to be tried."""
    return tuple(_to_try([size for site in _of_target(group) for size in site.sizes]))


def marked(group: RecompileGroup) -> Remedy | None:
    """Marks that raise no error, before each call; None if they would not help."""
    if sites := _of_target(group):
        kept = [_without(fixed_sizes(group.facts), site) for site in sites]
        marks = tuple(mark for site in kept for mark in site.marks)
        return Remedy("mark", marks=marks) if marks else None
    known = {(m.tensor, dim) for m in written_marks(group) for dim in m.dimensions}
    known |= fixed_sizes(group.facts).keys()
    kept = [_without(known, site) for site in _of_user(group)]
    kept = [site for site in kept if site.sizes]
    if not kept or not all(s.argument.fixed for site in kept for s in site.sizes):
        return None  # what is computed in the call has no name that can be marked
    edits = [_before_call(s) for s in kept]
    return Remedy(
        "mark",
        marks=tuple(mark for site in kept for mark in site.marks),
        replacements=tuple(r for e in edits if e for r in e.replacements)
        if all(edits)
        else (),
        title=_title(kept, group),
    )


def _before_call(site: _Site) -> Remedy | None:
    """The marks above the statement of a call, which gets its arguments by name."""
    source = changes.source_of(site.call.file)
    node = changes.statement_at(source, site.call.line) if source else None
    if source is None or not isinstance(node, _SIMPLE):
        return None
    if not changes.imports_torch(site.call.file) or any(map(_may_hide, ast.walk(node))):
        return None
    codes = [mark.code for mark in site.marks]
    return changes.edit("", source, {node: changes.code(source, node)}, above=codes)


def _may_hide(node: ast.AST) -> bool:
    """Whether the value of a name in it may differ above the statement, or be None."""
    if isinstance(node, ast.IfExp | ast.BoolOp):
        return any(isinstance(each, ast.Call) for each in ast.walk(node))
    return isinstance(node, ast.NamedExpr | _SCOPES)


def _title(sites: Sequence[_Site], group: RecompileGroup) -> str:
    """Where the marks go: before one call, or before several."""
    first, place = sites[0], group.frame
    frame = call_frame(first.call)
    call = f"`{expression_of(frame, 40)}`" if frame else "the call"
    if place is None or place.line != first.call.line:
        call += f" at line {first.call.line}"
    texts = [f"before {call}, each time: {marking(first.marks)}"]
    if len(sites) > 1:
        each = [f"{marking(s.marks)} at line {s.call.line}" for s in sites]
        texts = [f"before the calls, each time: {', '.join(each)}"]
    count = sum(len(site.marks) for site in sites)
    texts.append(
        f"mark the {count} sizes that vary with torch._dynamo.maybe_mark_dynamic before"
        f" {call}, each time"
    )
    return next((text for text in texts if len(text) <= PROSE), texts[-1])


def _of_target(group: RecompileGroup) -> list[_Site]:
    """The call that torchproof makes, with the sizes by the names of parameters."""
    call = group.first.entry_call
    if call is None or group.cut is not None:
        return []
    return _sites(group)[:1] if whose(call.file) == "torchproof" else []


def _of_user(group: RecompileGroup) -> list[_Site]:
    """The calls that the user's code makes; a trace has no sizes but the guard's."""
    call, guard = group.first.entry_call, group.guard
    if call is None or not group.is_marked_at_call:
        return []
    sites = _sites(group)
    if any(site.sizes for site in sites):
        return sites
    argument = Argument(guard.source, fixed=group.is_fixed)
    return [_Site(call, (VaryingSize(argument, guard.dim or 0),))]


def _sites(group: RecompileGroup) -> list[_Site]:
    """Every argument and dimension that varies between calls, in the caller's words.

    Marking only one is not enough: torch takes sizes that meet in one operation as
    equal, so one fixed size fixes the others. For the same reason every place that
    calls the function must mark its own arguments.
    """
    events = _events_of(group)
    same = [call for _, call in events]
    # Only the function that is compiled first in a call has its parameters.
    named = [call for event, call in events if event.entry is None]
    named += [call for call in same if call.by_user]
    sites = {(each.file, each.line, each.span): each for each in reversed(named)}
    sizes = varying(same)
    return [
        _Site(
            each,
            _distinct(
                VaryingSize(each.described(s.path), s.dim, s.seen) for s in sizes
            ),
        )
        for each in sorted(sites.values(), key=lambda each: (each.file, each.line))
    ]


def _distinct(sizes: Iterable[VaryingSize]) -> tuple[VaryingSize, ...]:
    """Removes duplicates: one tensor may be passed as two arguments."""
    return tuple({(size.argument.words, size.dim): size for size in sizes}.values())


def calls_of(group: RecompileGroup) -> list[Call]:
    """All recorded calls of the compiled function whose argument has changed."""
    return [call for _, call in _events_of(group)]


def _events_of(group: RecompileGroup) -> list[tuple[CompileEvent, Call]]:
    """What was compiled in these calls, with the call of each."""
    call = group.first.entry_call
    if call is None or group.first.path is None:
        return []
    events = group.facts.of(GraphEvent, GuardEvent)
    calls = [(e, e.entry_call) for e in events if e.entry_call]
    return [(e, each) for e, each in calls if each.entry == call.entry]


def _without(known: Collection[tuple[str, int]], site: _Site) -> _Site:
    """The sizes that a mark makes dynamic, but for those that are marked or fixed."""
    dynamic = (
        size
        for size in site.sizes
        if (size.argument.words, size.dim) not in known
        and (not {0, 1} & set(size.seen) or len(set(size.seen) - {0, 1}) > 1)
    )
    return site._replace(sizes=tuple(dynamic))


def _to_try(changing: Sequence[VaryingSize]) -> Iterator[Mark]:
    """Marks that make sizes dynamic; some programs fail with them.

    Torch compiles sizes 0 and 1 separately unless they are unbacked; then it must know
    which sizes are equal (shape_id). Sizes that are equal in the first call share a
    symbol, unless mark_dynamic says that they vary independently.
    """
    series = list(dict.fromkeys(size.seen for size in changing))
    first = [sizes[:1] for sizes in series]
    for argument, dim, sizes in changing:
        if {0, 1} & set(sizes):
            same = f"s{series.index(sizes)}"
            yield Mark(argument.words, dim, "mark_unbacked", same)
        elif first.count(sizes[:1]) > 1:
            yield Mark(argument.words, dim, "mark_dynamic")
        else:
            yield Mark(argument.words, dim, "maybe_mark_dynamic")
