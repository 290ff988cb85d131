"""DS60x: dynamic sizes that become constants of the graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import removed, written_marks
from torchproof.checking.rules.breaks import unbacked_marks
from torchproof.checking.rules.errors import CompileError, ErrorGroup
from torchproof.checking.rules.interruptions import break_above
from torchproof.checking.rules.recompile_groups import placed
from torchproof.checking.rules.rule import (
    PROSE,
    EventGroup,
    Facts,
    Rule,
    fitted,
    shorten,
    stack,
)
from torchproof.checking.static.line_facts import WrittenMark, tested
from torchproof.records import (
    BreakEvent,
    CompileEvent,
    FailureEvent,
    Frame,
    Remedy,
    Severity,
    SpecializationEvent,
    cells,
    place_of,
    readable_source,
    shown_briefly,
)

# Code that decides by a size, rather than computes with it.
_DECIDES = r"[=!<>]=|[<>]|\b(if|assert|for|while|range)\b|%"
_WHOLE = re.compile(r"^(?:if|elif|while|assert)\s+(.+?):?$")
_OF_SIZE = r"\.(shape|size|numel)\b|\blen\("


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
    advice_text = "remove the mark_dynamic of size {dim} of `{name}`"

    def matches(self, group: ErrorGroup) -> bool:
        return super().matches(group) or "Constraints violated" in group.first.message

    def words(self, group: ErrorGroup) -> dict[str, object]:
        text = group.first.message
        sizes = _sources(group, text)
        name, dim = sizes[0] if sizes else ("an input", "?")
        value = re.search(r"to be a constant \((\d+)\)", text)
        least = re.search(r"the generated guard (\d+) <=", text)
        needs = value[1] if value else "some sizes"
        if value is None and least is not None:
            needs = f"sizes from {least[1]}"
        return {"name": name, "dim": dim, "needs": needs, "least": least and least[1]}

    def message(self, group: ErrorGroup) -> str:
        text = (
            "size {dim} of `{name}` is marked dynamic, but {at.compiled} needs {needs}"
        )
        return self.say(text, group)

    def cause(self, group: ErrorGroup) -> str:
        text = "`{at.expression}` holds for {needs} as size {dim} of `{name}` only"
        return fitted(lambda at: self.say(text, at), group, PROSE)

    def remedy(self, group: ErrorGroup) -> Remedy:
        words = self.words(group)
        mark = _own_mark(group, str(words["name"]), str(words["dim"]))
        if mark is None:
            return super().remedy(group)
        at = cells.place(shown_briefly(mark.file), mark.line)
        if words["needs"] == f"sizes from {words['least']}":
            return Remedy("none", why=f"pass min={words['least']} to the mark at {at}")
        return removed([mark]) or super().remedy(group)


def _own_mark(group: ErrorGroup, name: str, dim: str) -> WrittenMark | None:
    """The user's line that marks a size; None if several may be meant."""
    hard = [mark for mark in written_marks(group) if mark.how == "mark_dynamic"]
    same = [m for m in hard if m.tensor == name and int(dim) in m.dimensions]
    found = same or hard
    return found[0] if len(found) == 1 or same else None


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
    advice_text = "if it always holds, write torch._check({at.expression}) above"

    def message(self, group: ErrorGroup) -> str:
        text = "compilation of {at.function} fails at `{at.expression}`: {short}"
        return self.say(text, group)

    def cause(self, group: ErrorGroup) -> str:
        return f"{group.first.error}: {self.short(group)}"

    def remedy(self, group: ErrorGroup) -> Remedy:
        """Without the mark that leaves a size without a value, or a statement of it."""
        is_size = re.search(_OF_SIZE, group.expression) is not None
        own = removed(unbacked_marks(group)) if is_size else None
        return own or super().remedy(group)

    def short(self, group: ErrorGroup) -> str:
        guard = re.search(
            r"data-dependent expression (.+?) \(unhinted", group.first.message
        )
        what = f"`{guard[1]}`" if guard else "it"
        return f"{what} has no value while tracing"


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
        "`{at.expression}` makes {sizes} the constant {at.first.value} in {at.compiled}"
    )
    cause_text = "`{at.expression}` fixes {sizes}, so every other size recompiles"
    unrolled_text = (
        "replace the loop `{at.expression}`, which torch unrolls, by an operation"
    )
    decided_text = "decide `{decision}` before the compiled call and pass the answer"
    combined_text = "cut the other tensor in `{at.expression}` to {sizes}: table[:n]"
    library_text = "pad {sizes} so that it is the same in every call"

    def words(self, group: SizeGroup) -> dict[str, object]:
        return {"sizes": _sizes(group)}

    def cause(self, group: SizeGroup) -> str:
        return fitted(super().cause, group, PROSE)

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
            decides = re.search(_DECIDES, _deciding(place.frame))
            if not (_is_marked(event) or (is_own_line and decides)):
                continue
            key = (place.frame.file, place.frame.line, event.sources)
            if key not in keys:
                keys.add(key)
                yield SizeGroup((event,), place, facts, count=1)

    def remedy(self, group: SizeGroup) -> Remedy:
        return self._unmarked(group) or super().remedy(group)

    def advice(self, group: SizeGroup) -> str:
        if cut := break_above(group.first, group.facts):
            return f"remove the graph break at {placed(cut, group)}"
        text = self.combined_text
        if group.place.owner == "library":
            text = self.library_text
        elif re.search(r"\b(for|range)\b", group.expression):
            text = self.unrolled_text
        elif re.search(_DECIDES, decision := _deciding(group.frame, group.expression)):
            test = _WHOLE.sub(r"\1", decision)
            return self.decided_text.format(decision=shorten(test, group.width))
        return self.say(text, group)

    def _unmarked(self, group: SizeGroup) -> Remedy | None:
        """The edit that removes the mark of a size that cannot be dynamic."""
        is_cut = break_above(group.first, group.facts) is not None
        own = _is_marked(group.first) and not is_cut
        for mark in written_marks(group) if own else ():
            for name, dim in sizes_of(group):
                if mark.tensor == name and dim in mark.dimensions:
                    return removed([mark])
        return None

    def evidence(self, group: SizeGroup) -> Iterable[str]:
        event = group.first
        yield f"{event.symbol} = {event.value}: {event.reason}"
        yield from stack(group)

    def severity(self, group: SizeGroup) -> Severity:
        is_dynamic = group.compile_arguments.get("dynamic") == "True"
        return "medium" if is_dynamic or _is_marked(group.first) else "low"


def _deciding(frame: Frame | None, expression: str = "") -> str:
    """The code that may decide by a size: of `a if test else b`, the test."""
    code = frame.code if frame else ""
    return tested(code) or expression or code


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
