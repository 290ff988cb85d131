"""DS60x: sizes that were to stay dynamic and are compiled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import break_above, told_at
from torchproof.checking.rules.errors import CompileError, user_stack
from torchproof.checking.rules.rule import Facts, Rule, Subject
from torchproof.observe import readable_source
from torchproof.records import Event, Frame, Severity, place_of


class MarkedDimension(CompileError):
    """A dimension marked dynamic is compiled in as a constant.

    ## Why
    mark_dynamic promises that a dimension varies; code that compares it with a number,
    or combines it with a fixed size, takes that back.

    ## Bad
        torch._dynamo.mark_dynamic(x, 0)
        gain = 2.0 if x.shape[0] == 6 else 1.0

    ## Good
        torch._dynamo.maybe_mark_dynamic(x, 0)      # or remove the branch

    ## Fix safety
    maybe_mark_dynamic recompiles for other sizes where mark_dynamic raises.
    """

    code = "DS601"
    kind = "specialization"
    errors = ("ConstraintViolationError",)

    def matches(self, subject: Subject) -> bool:
        return (
            super().matches(subject)
            or "Constraints violated" in subject.data["message"]
        )

    def message(self, subject: Subject) -> str:
        name, dim, value = _marked(subject)
        return (
            f"size {dim} of `{name}` is marked dynamic, but {subject.compiled} only"
            f" works for {value}: torch.compile raises"
        )

    def cause(self, subject: Subject) -> str:
        name, dim, value = _marked(subject)
        return f"`{subject.expression}` compiles size {dim} of `{name}` in as {value}"

    def fix(self, subject: Subject) -> str:
        name, dim, _ = _marked(subject)
        return (
            f"remove the branch on the size at `{subject.expression}`, or replace"
            f" mark_dynamic by torch._dynamo.maybe_mark_dynamic({name}, {dim}), which"
            " recompiles instead of raising"
        )


def _marked(subject: Subject) -> tuple[str, str, str]:
    text = subject.data["message"]
    sizes = _sources(subject, text)
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
    With captured scalars (or mark_unbacked) a size has no value while tracing; a branch
    on it cannot be decided.

    ## Bad
        k = (x > 0).sum().item()
        if k > 4: ...

    ## Good
        torch._check(k > 4)       # if it always holds; else torch.cond or torch.where

    ## Fix safety
    torch._check raises at run time when the promise does not hold.
    """

    code = "DS602"
    reference = torch_pages.DYNAMIC_SHAPES
    errors = (
        "UserError",
        "GuardOnDataDependentSymNode",
        "TorchRuntimeError",
        "Unsupported",
    )
    told = r"guard on data-dependent expression|GuardOnDataDependent"

    def short(self, subject: Subject) -> str:
        guard = re.search(
            r"data-dependent expression (.+?) \(unhinted", subject.data["message"]
        )
        return (
            f"the condition {guard[1] if guard else 'here'} has no value while tracing"
        )

    def fix(self, subject: Subject) -> str:
        return (
            f"tell torch what holds at `{subject.expression}` with torch._check(...),"
            " or make it part of the graph with torch.cond or torch.where; inside"
            " operators use guard_or_false"
        )


class QuietSpecialisation(Rule):
    """A dimension that could be dynamic is compiled in by a comparison.

    ## Why
    Comparing a size with a number fixes it: every other size compiles again.

    ## Bad
        if x.shape[0] == 6: ...

    ## Good
        decide outside the compiled function, or by a flag

    ## Fix safety
    Same values.
    """

    code = "DS603"
    kind = "specialization"

    def matches(self, subject: Subject) -> bool:
        return subject.first.kind == "specialization"

    def message(self, subject: Subject) -> str:
        return (
            f"`{subject.expression}` compiles {_sizes(subject)} in as"
            f" {subject.data['value']}: {subject.compiled} is compiled again for every"
            " other size"
        )

    def cause(self, subject: Subject) -> str:
        return (
            f"the code decides by {_sizes(subject)}, so the dynamic size became the"
            f" constant {subject.data['value']}"
        )

    def fix(self, subject: Subject) -> str:
        what = subject.expression
        if cut := break_above(subject.first, subject.facts):
            return (
                f"remove the graph break at {told_at(cut)}: it hands sizes over as"
                " constants, and what meets them becomes constant too"
            )
        if subject.place.owner == "library":
            return (
                f"`{what}` is not in your code: keep {_sizes(subject)} the same from"
                " call to call, by padding or with drop_last=True in a DataLoader, and"
                " do not mark it dynamic"
            )
        if re.search(r"\b(for|range)\b", what):
            return (
                f"a Python loop over a size is unrolled at `{what}`: vectorise it over"
                " the dimension, use torch.while_loop or scan, or treat the size as"
                " static and pad"
            )
        return (
            f"remove what fixes the size at `{what}`: slice the other tensor to it"
            " (table[:n]), take the decision outside the compiled function, or accept a"
            " static size and drop mark_dynamic"
        )

    def evidence(self, subject: Subject) -> Iterable[str]:
        data = subject.data
        yield f"{data['symbol']} = {data['value']}: {data['reason']}"
        yield from user_stack(subject)

    def severity(self, subject: Subject) -> Severity:
        asked = subject.facts.compile_arguments.get("dynamic") == "True"
        return "medium" if asked or _is_marked(subject.first) else "low"


def _sources(subject: Subject, text: str) -> list[tuple[str, str]]:
    """The tensors and dimensions in a text of torch's, in the caller's words."""
    call = subject.data.get("entry_call")
    return [(call.words(name) if call else name, dim) for name, dim in _named(text)]


def _named(text: str) -> list[tuple[str, str]]:
    """The tensors and dimensions in a text of torch's."""
    found = re.findall(r"(L\['\w+'\]\S*?)\.size\(\)\[(\d+)\]", text)
    return [(readable_source(source), dim) for source, dim in found]


def _sizes(subject: Subject) -> str:
    sizes = _sources(subject, " ".join(subject.data["sources"]))
    return ", ".join(f"size {dim} of `{name}`" for name, dim in sizes) or "a size"


def specialisations(facts: Facts) -> Iterator[Subject]:
    """Sizes the user marked dynamic, or compares, that became constants.

    That an operator fixes a size nobody marked is normal: think of a linear layer.
    """
    failed = {e.compile_id for e in facts.events("compile_failure")}
    seen: set[tuple[object, ...]] = set()
    for event in facts.events("specialization"):
        place = place_of(event.frames)
        if place.frame is None or event.compile_id in failed:
            continue
        own = event.frames[-1].line == place.frame.line
        decides = re.search(
            r"[=!<>]=|[<>]|\b(if|assert|for|while|range)\b|%", place.frame.code
        )
        if not (_is_marked(event) or (own and decides)):
            continue
        key = (place.frame.file, place.frame.line, tuple(event.data["sources"]))
        if key not in seen:
            seen.add(key)
            yield Subject((event,), place, facts, 1, None)


def _is_marked(event: Event) -> bool:
    sizes = _named(" ".join(event.data["sources"]))
    marked = {(name, str(dim)) for name, dim in event.data.get("marks", ())}
    return not marked.isdisjoint(sizes)


def fixed_sizes(facts: Facts) -> dict[tuple[str, int], Frame]:
    """Sizes in the caller's words that were dynamic until a line fixed them."""
    lines: dict[tuple[str, int], Frame] = {}
    for event in facts.events("specialization"):
        frame, call = place_of(event.frames).frame, event.data.get("entry_call")
        if frame and call and break_above(event, facts) is None:
            for name, dim in _named(" ".join(event.data["sources"])):
                lines[call.words(name), int(dim)] = frame
    return lines
