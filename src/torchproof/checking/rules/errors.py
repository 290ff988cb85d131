"""CE7xx: compilations that raise an error although eager runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import has_fullgraph, user_files
from torchproof.checking.rules.breaks import BreakGroup, GraphBreak
from torchproof.checking.rules.operator_edits import fake_edit, register_fake
from torchproof.checking.rules.rule import (
    PROSE,
    EventGroup,
    Facts,
    Fixed,
    Rule,
    fitted,
    grouped,
    shorten,
    stack,
)
from torchproof.records import (
    ErrorEvent,
    Event,
    FailureEvent,
    Place,
    RaisedEvent,
    Remedy,
    Symptom,
    definition,
    place_of,
    whose,
)


def _place(event: Event) -> Place:
    """The user's line that the error names, else the compiled function."""
    place = place_of(event.frames)
    if place.frame is None and event.function and whose(event.function.file) == "user":
        return place_of((definition(event.function),))
    return place


ErrorGroup = EventGroup[ErrorEvent]


class CompileError(Rule[ErrorGroup]):
    """Base class of the rules for compile errors; each rule knows one failure."""

    kind = "compile_error"
    reference = torch_pages.REPORTING
    placed = True
    errors: tuple[str, ...] = ()
    pattern: str | None = None  # searched in the message of the error
    message_text = "compilation of {at.compiled} fails at {at.what}{often}"
    cause_text = "{at.first.error}: {short}"
    advice_text = (
        "put {at.what} in a function marked @torch.compiler.disable, which runs eagerly"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[ErrorGroup]:
        """One group per place and error."""
        events: list[ErrorEvent] = [*facts.of(FailureEvent)]
        for event in facts.of(RaisedEvent):
            # Several parts of a check may meet the same failure.
            known = any(e.error == event.error for e in events)
            if event.phase is not None and not known:
                events.append(event)
        placed = {e.error for e in events if _place(e).frame is not None}
        for group in grouped(events, lambda e: (_place(e), e.error)):
            place = _place(group[0])
            if place.frame is None and group[0].error in placed:
                continue  # the same failure, reported again by an inner frame of torch
            runs = [e.runs for e in group if e.runs]
            count = sum(r.count for r in runs) if runs else len(group)
            steps = sum(r.calls for r in runs) if runs else None
            yield ErrorGroup(tuple(group), place, facts, count=count, steps=steps)

    def matches(self, group: ErrorGroup) -> bool:
        if group.first.error not in self.errors:
            return False
        return (
            self.pattern is None
            or re.search(self.pattern, group.first.message) is not None
        )

    def words(self, group: ErrorGroup) -> dict[str, object]:
        often = f", {group.often}" if group.often else ""
        return {"short": self.short(group), "often": often}

    def word(self, group: ErrorGroup) -> str:
        return group.first.error

    def short(self, group: ErrorGroup) -> str:
        """The error in one short sentence."""
        text = re.split(r"\.\s+(?=[A-Z])", _innermost_error(group.first.message))[0]
        return shorten(text, 120)

    def page(self, group: ErrorGroup) -> str | None:
        return group.first.reason.page

    def evidence(self, group: ErrorGroup) -> Iterable[str]:
        yield shorten(f"{group.first.error}: {group.first.message}", 400)
        yield from stack(group)

    def symptom(self, group: ErrorGroup) -> Symptom | None:
        first = group.first
        return Symptom(first.error, shorten(first.message, 360), first.reason.gb_id)


def _innermost_error(message: str) -> str:
    """`shape '[3, 3]' is invalid` out of torch's "failed to run FX node ..."."""
    got = re.search(r"got \w+\((?P<q>['\"])(?P<text>.+?)(?P=q)\)", message, re.DOTALL)
    if got:
        return got["text"]
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    raised = re.match(r"backend=.* raised:$", lines[0]) if lines else None
    return (
        lines[1]
        if raised and len(lines) > 1
        else (lines[0] if lines else "unknown error")
    )


def _in_backward(group: ErrorGroup) -> bool:
    """Whether a backend failed on the graph of a backward, at its first run."""
    return isinstance(group.first, RaisedEvent) and group.first.phase == "backward"


class FailsOnFakeTensors(CompileError):
    """An operation fails while tracing, although the program catches the error.

    ## Why
    Dynamo runs each operation on fake tensors. An error there ends the compilation: the
    `except` in the traced code does not catch it.

    ## Bad
        try:
            y = x.view(3, 3)
        except RuntimeError:
            y = x.view(2, 4)

    ## Good
        y = x.view(3, 3) if x.numel() == 9 else x.view(2, 4)

    ## Fix safety
    The values are the same if the test and the exception agree.
    """

    code = "CE701"
    fixed = (Fixed("2.14.1", "an operation that fails inside `try`", ""),)
    reference = torch_pages.FAKE_TENSORS
    errors = ("TorchRuntimeError", "IndexError", "RuntimeError")

    def matches(self, group: ErrorGroup) -> bool:
        return super().matches(group) and not _in_backward(group)

    def later(self, group: ErrorGroup) -> str | None:
        """None: an `if` works with every torch."""
        return None

    def advice(self, group: ErrorGroup) -> str:
        if group.line.is_readable and group.line.try_line is None:
            return super().advice(group)
        return f"test the shape with an `if` before {group.what}, instead of catching"


class MissingFakeKernel(CompileError):
    """A custom operator has no fake implementation.

    ## Why
    Torch needs the fake implementation to compute the shape of the output while
    tracing.

    ## Bad
        @torch.library.custom_op("lib::scale", mutates_args=())
        def scale(x: Tensor) -> Tensor: ...

    ## Good
        @scale.register_fake
        def _(x): return torch.empty_like(x)

    ## Fix safety
    A wrong fake implementation makes the graph wrong. torch.library.opcheck tests it.
    """

    code = "CE702"
    reference = torch_pages.CUSTOM_OPERATORS
    errors = (
        "TorchRuntimeError",
        "UnsupportedOperatorException",
        "Unsupported",
        "RuntimeError",
    )
    pattern = (
        r"fake impl|register_fake|no fake|fake kernel|Meta tensors|meta"
        r" kernel|NotImplementedError"
    )

    def edit(self, group: ErrorGroup) -> Remedy | None:
        return fake_edit(group.first.message, user_files(group))

    def advice(self, group: ErrorGroup) -> str:
        return register_fake(group.first.message) or super().advice(group)


class NoCompiler(CompileError):
    """Torch finds no compiler for the code that it generates, so nothing is compiled.

    ## Why
    Inductor generates C++ for the CPU, and Triton builds its launchers with a C
    compiler. Without one, every compilation that generates code fails.

    ## Bad
        CXX=/opt/missing/g++ python serve.py     # torch.compile(model) in serve.py

    ## Good
        apt-get install g++ && python serve.py

    ## Fix safety
    Changes no value.
    """

    code = "CE705"
    parts = ("baseline",)
    errors = ("InductorError", "InvalidCxxCompiler", "RuntimeError")
    pattern = r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C compiler"
    cause_text = "{at.first.error}: {short}"

    message_text = (
        "nothing can be compiled: torch finds no {language} compiler for the code it"
        " generates"
    )
    advice_text = "install {program} where this program runs"

    def words(self, group: ErrorGroup) -> dict[str, object]:
        is_cpp = "find C compiler" not in group.first.message
        language, program = ("C++", "g++") if is_cpp else ("C", "gcc")
        return {**super().words(group), "language": language, "program": program}


class BackendError(CompileError):
    """The backend raises an error while it compiles a captured graph.

    ## Why
    Tracing succeeded; the backend failed.

    ## Bad
        torch.compile(f, backend=broken)

    ## Good
        torch.compile(f, backend="eager")       # shows that tracing works

    ## Fix safety
    Another backend gives the same values up to rounding.
    """

    code = "CE703"
    errors = ("BackendCompilerFailed", "InductorError", "LoweringException")

    def matches(self, group: ErrorGroup) -> bool:
        return super().matches(group) or _in_backward(group)

    message_text = "{backend} fails on the {graph} of {at.compiled}{often}"
    advice_text = (
        'pass backend="{other}" to torch.compile until the error in it is fixed'
    )

    def words(self, group: ErrorGroup) -> dict[str, object]:
        named = re.search(r"backend='(.+?)'", group.first.message)
        is_inductor = named is None and group.first.error == "InductorError"
        name = "inductor" if is_inductor else (named[1] if named else "")
        given = name or group.facts.compile_arguments.get("backend", "inductor")
        return {
            **super().words(group),
            "backend": f"the backend {name}".rstrip(),
            "graph": "backward graph" if _in_backward(group) else "graph",
            "other": "aot_eager" if given == "inductor" else "inductor",
        }


class BreakUnderFullgraph(CompileError):
    """A graph break happens where fullgraph=True forbids one.

    ## Why
    fullgraph=True turns every graph break into an error.

    ## Bad
        torch.compile(f, fullgraph=True)       # f prints

    ## Good
        torch.compile(f)                       # or remove the cause of the break

    ## Fix safety
    See the rule of the break's cause.
    """

    code = "CE704"
    reference = torch_pages.FULLGRAPH
    errors = ("Unsupported", "UserError", "UncapturedHigherOrderOpError")

    def cause(self, group: ErrorGroup) -> str:
        rule, behind = self._behind(group)
        condition = "with fullgraph=True" if has_fullgraph(group) else "here"
        return fitted(
            lambda at: f"{condition} a graph break is an error: {rule.why(at)}",
            behind,
            PROSE,
        )

    def remedy(self, group: ErrorGroup) -> Remedy:
        rule, behind = self._behind(group)
        return rule.remedy(behind)

    def _behind(self, group: ErrorGroup) -> tuple[GraphBreak, BreakGroup]:
        """The rule of the break that is an error here, and the break."""
        behind = BreakGroup(group.events, group.place, group.facts)
        rule = group.facts.first(GraphBreak, behind)
        assert rule is not None  # the last one matches every break
        return rule, behind


class OtherError(CompileError):
    """A compilation fails with an error that no other rule covers.

    ## Why
    The finding quotes torch's error.

    ## Bad
        y = unsupported(x)       # in the compiled function

    ## Good
        y = disabled(x)          # a function marked @torch.compiler.disable calls it

    ## Fix safety
    Disabling compilation there changes no value.
    """

    code = "CE799"

    def matches(self, group: ErrorGroup) -> bool:
        return True
