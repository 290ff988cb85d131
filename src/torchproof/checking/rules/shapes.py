"""DS60x: dynamic sizes that become constants of the graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import (
    Piece,
    assembled,
    removed,
    written_marks,
)
from torchproof.checking.rules.breaks import place_in_text, unbacked_mark
from torchproof.checking.rules.errors import CompileError, ErrorGroup
from torchproof.checking.rules.interruptions import break_above
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, stack
from torchproof.checking.static.line_facts import WrittenMark
from torchproof.records import (
    BreakEvent,
    CompileEvent,
    FailureEvent,
    Frame,
    Severity,
    SpecializationEvent,
    place_of,
    readable_source,
)

# Code that decides by a size, rather than computes with it.
_DECIDES = r"[=!<>]=|[<>]|\b(if|assert|for|while|range)\b|%"


class MarkedDimension(CompileError):
    """A dimension marked dynamic becomes a constant of the graph.

    ## Why
    mark_dynamic promises that a dimension varies. Code that compares the dimension with
    a number, or combines it with a fixed size, breaks that promise.

    ## Bad
        torch._dynamo.mark_dynamic(x, 0)
        gain = 2.0 if x.shape[0] == 6 else 1.0

    ## Good
        torch._dynamo.maybe_mark_dynamic(x, 0)      # or remove the branch

    ## Fix safety
    maybe_mark_dynamic recompiles for other sizes, where mark_dynamic raises an error.
    """

    code = "DS601"
    kind = "specialization"
    reference = torch_pages.DYNAMIC_SHAPES
    placed = False
    errors = ("ConstraintViolationError",)

    def matches(self, group: ErrorGroup) -> bool:
        return super().matches(group) or "Constraints violated" in group.first.message

    def message(self, group: ErrorGroup) -> str:
        name, dim, value = _marked(group)
        return (
            f"size {dim} of `{name}` is marked dynamic, but {group.compiled} only"
            f" works for {value}: torch.compile raises"
        )

    def cause(self, group: ErrorGroup) -> str:
        name, dim, value = _marked(group)
        return f"`{group.expression}` compiles size {dim} of `{name}` in as {value}"

    def advice(self, group: ErrorGroup) -> str:
        name, dim, _ = _marked(group)
        maybe = f"torch._dynamo.maybe_mark_dynamic({name}, {dim})"
        mark = _own_mark(group, name, dim)
        return assembled(
            Piece(removed(mark) if mark else "remove the mark_dynamic of that size"),
            Piece(f"write {maybe} instead, which recompiles and raises no error"),
            Piece(
                f"remove the branch on the size at `{group.expression}`",
                re.search(_DECIDES, group.expression) is not None,
            ),
        )


def _own_mark(group: ErrorGroup, name: str, dim: str) -> WrittenMark | None:
    """The user's line that marks a size; None if several may be meant."""
    hard = [mark for mark in written_marks(group) if mark.how == "mark_dynamic"]
    same = [m for m in hard if m.tensor == name and int(dim) in m.dimensions]
    found = same or hard
    return found[0] if len(found) == 1 or same else None


def _marked(group: ErrorGroup) -> tuple[str, str, str]:
    text = group.first.message
    sizes = _sources(group, text)
    value = re.search(r"to be a constant \((\d+)\)", text)
    least = re.search(r"the generated guard (\d+) <=", text)
    name, dim = sizes[0] if sizes else ("an input", "?")
    if value is None and least is not None:
        return (
            name,
            dim,
            f"sizes from {least[1]} (give mark_dynamic that range with min=)",
        )
    return name, dim, value[1] if value else "some sizes"


class UnbackedBranch(CompileError):
    """The code branches on a number that exists only at run time.

    ## Why
    With capture_scalar_outputs or mark_unbacked, a size has no value while tracing, so
    Dynamo cannot decide a branch on it.

    ## Bad
        k = (x > 0).sum().item()
        if k > 4: ...

    ## Good
        torch._check(k > 4)       # if it always holds; else torch.cond or torch.where

    ## Fix safety
    torch._check raises an error at run time if the condition does not hold.
    """

    code = "DS602"
    reference = torch_pages.DYNAMIC_SHAPES
    errors = (
        "UserError",
        "GuardOnDataDependentSymNode",
        "TorchRuntimeError",
        "Unsupported",
    )
    pattern = r"guard on data-dependent expression|GuardOnDataDependent"

    def advice(self, group: ErrorGroup) -> str:
        what = group.expression
        return unbacked_mark(group) or assembled(
            Piece(
                f"assert the condition at `{what}` with torch._check(...), if it always"
                " holds"
            ),
            Piece("make the branch part of the graph with torch.cond or torch.where"),
        )

    def short(self, group: ErrorGroup) -> str:
        guard = re.search(
            r"data-dependent expression (.+?) \(unhinted", group.first.message
        )
        return (
            f"the condition {guard[1] if guard else 'here'} has no value while tracing"
        )


SizeGroup = EventGroup[SpecializationEvent]


class QuietSpecialisation(Rule[SizeGroup]):
    """A comparison makes a dimension a constant that could be dynamic.

    ## Why
    Comparing a size with a number fixes the size: every other size recompiles.

    ## Bad
        if x.shape[0] == 6: ...

    ## Good
        if is_last_batch: ...        # a flag, or decide outside the compiled function

    ## Fix safety
    The values are the same.
    """

    code = "DS603"
    kind = "specialization"
    reference = torch_pages.DYNAMIC_SHAPES
    message_text = (
        "`{at.expression}` makes {sizes} the constant {at.first.value}: {at.compiled}"
        " recompiles for every other size"
    )
    cause_text = (
        "the code decides by {sizes}, so the dynamic size became the constant"
        " {at.first.value}"
    )

    def words(self, group: SizeGroup) -> dict[str, object]:
        return {"sizes": _sizes(group)}

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SizeGroup]:
        """Sizes that became constants although the user marked or compares them.

        If an operator fixes a size that nobody marked, that is normal, as in a linear
        layer.
        """
        failed = {e.compile_id for e in facts.of(FailureEvent)}
        failed |= {e.compile_id for e in facts.of(BreakEvent) if not e.logged}
        keys: set[tuple[object, ...]] = set()
        for event in facts.of(SpecializationEvent):
            place = place_of(event.frames)
            if place.frame is None or event.compile_id in failed:
                continue
            is_own_line = event.frames[-1].line == place.frame.line
            decides = re.search(_DECIDES, place.frame.code)
            if not (_is_marked(event) or (is_own_line and decides)):
                continue
            key = (place.frame.file, place.frame.line, event.sources)
            if key not in keys:
                keys.add(key)
                yield SizeGroup((event,), place, facts, count=1)

    def advice(self, group: SizeGroup) -> str:
        what = group.expression
        if cut := break_above(group.first, group.facts):
            return (
                f"remove the graph break at {place_in_text(cut)}: sizes that cross it"
                " become constants, and so do the sizes combined with them"
            )
        if group.place.owner == "library":
            return assembled(
                Piece(self._unmarked(group)),
                Piece(
                    f"`{what}` is not in your code: keep {_sizes(group)} the same in"
                    " every call, by padding or with drop_last=True in a DataLoader"
                ),
            )
        if re.search(r"\b(for|range)\b", what):
            return (
                f"Dynamo unrolls the Python loop over a size at `{what}`: vectorise it"
                " over the dimension, use torch.while_loop or scan, or treat the size"
                " as static and pad"
            )
        decides = re.search(_DECIDES, what) is not None
        return assembled(
            Piece(
                f"move the decision at `{what}` outside the compiled function", decides
            ),
            Piece(
                f"change the code that fixes the size at `{what}`: slice the other"
                " tensor to it (table[:n])",
                not decides,
            ),
            Piece(self._unmarked(group)),
        )

    def _unmarked(self, group: SizeGroup) -> str:
        """The edit that removes the mark of a size that cannot be dynamic."""
        for mark in written_marks(group) if _is_marked(group.first) else ():
            for name, dim in sizes_of(group):
                if mark.tensor == name and dim in mark.dimensions:
                    return removed(mark)
        return ""

    def evidence(self, group: SizeGroup) -> Iterable[str]:
        event = group.first
        yield f"{event.symbol} = {event.value}: {event.reason}"
        yield from stack(group)

    def severity(self, group: SizeGroup) -> Severity:
        is_dynamic = group.facts.compile_arguments.get("dynamic") == "True"
        return "medium" if is_dynamic or _is_marked(group.first) else "low"


def _sources(group: EventGroup[CompileEvent], text: str) -> list[tuple[str, str]]:
    """The tensors and dimensions that a torch message names, in the caller's words."""
    call = group.first.entry_call
    return [(call.words(name) if call else name, dim) for name, dim in _named(text)]


def _named(text: str) -> list[tuple[str, str]]:
    """The tensors and dimensions that a torch message names."""
    sizes = re.findall(r"(L\['\w+'\]\S*?)\.size\(\)\[(\d+)\]", text)
    return [(readable_source(source), dim) for source, dim in sizes]


def sizes_of(group: SizeGroup) -> list[tuple[str, int]]:
    """The sizes that a specialisation makes constants, in the caller's words."""
    named = _sources(group, " ".join(group.first.sources))
    return [(words, int(dim)) for words, dim in named]


def _sizes(group: SizeGroup) -> str:
    sizes = _sources(group, " ".join(group.first.sources))
    return ", ".join(f"size {dim} of `{name}`" for name, dim in sizes) or "a size"


def _is_marked(event: SpecializationEvent) -> bool:
    sizes = _named(" ".join(event.sources))
    marked = {(name, str(dim)) for name, dim in event.marks}
    return not marked.isdisjoint(sizes)


def fixed_sizes(facts: Facts) -> dict[tuple[str, int], Frame]:
    """Sizes, in the caller's words, that were dynamic until a line fixed them."""
    lines: dict[tuple[str, int], Frame] = {}
    for event in facts.of(SpecializationEvent):
        frame = place_of(event.frames).frame
        call = event.entry_call
        if frame and call and break_above(event, facts) is None:
            for name, dim in _named(" ".join(event.sources)):
                lines[call.words(name), int(dim)] = frame
    return lines
