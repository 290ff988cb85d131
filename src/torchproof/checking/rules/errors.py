"""CE7xx: compilations that raise an error although eager runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import Piece, assembled, has_fullgraph
from torchproof.checking.rules.breaks import BreakGroup, GraphBreak, unbacked_mark
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    Fixed,
    Rule,
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
    advice_text = (
        "rewrite {at.what}, or move it into a function marked @torch.compiler.disable,"
        " which runs eagerly"
    )
    cause_text = "{at.first.error}: {short}"

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
        return {"short": self.short(group)}

    def message(self, group: ErrorGroup) -> str:
        often = f" ({group.often})" if group.often else ""
        return (
            f"compilation fails at {group.what} in {group.function}{often}, although"
            f" eager runs it: {self.short(group)}"
        )

    def word(self, group: ErrorGroup) -> str:
        return group.first.error

    def short(self, group: ErrorGroup) -> str:
        """The error in one short sentence."""
        return shorten(_innermost_error(group.first.message), 160)

    def evidence(self, group: ErrorGroup) -> Iterable[str]:
        yield shorten(f"{group.first.error}: {group.first.message}", 400)
        if group.first.reason.gb_id:
            yield f"{group.first.reason.gb_id} {group.first.reason.page}"
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

    def advice(self, group: ErrorGroup) -> str:
        if group.line.is_readable and group.line.try_line is None:
            return super().advice(group)
        return (
            f"check the shape first, e.g. `if x.numel() == n:` before"
            f" `{group.expression}`, instead of catching the error; or move the"
            " try/except into a function marked @torch.compiler.disable"
        )


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

    def advice(self, group: ErrorGroup) -> str:
        operator = re.search(r"[\w]+(?:\.|::)[\w]+(?=\.default)", group.first.message)
        name = operator[0].replace(".", "::") if operator else "the operator"
        return (
            f"register a fake implementation of {name}:"
            f' @torch.library.register_fake("{name}")'
            " def _(x): return torch.empty_like(x); the operator is called at"
            f" `{group.expression}`"
        )


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

    def message(self, group: ErrorGroup) -> str:
        return (
            f"nothing can be compiled: torch finds no {self._language(group)} compiler"
            f" for the code that it generates for {group.compiled}"
        )

    def advice(self, group: ErrorGroup) -> str:
        is_cpp = self._language(group) == "C++"
        variable, program = ("CXX", "g++") if is_cpp else ("CC", "gcc")
        return (
            f"install {program} (apt-get install {program}, dnf install gcc-c++) where"
            f" this program runs, or set {variable} to the path of a compiler; without"
            ' one, torch.compile works only with backend="aot_eager" or "eager"'
        )

    def _language(self, group: ErrorGroup) -> str:
        return "C" if "find C compiler" in group.first.message else "C++"


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

    def message(self, group: ErrorGroup) -> str:
        which = "backward graph" if _in_backward(group) else "graph"
        return (
            f"{self._backend(group)} fails on the {which} of {group.compiled}:"
            f" {self.short(group)}"
        )

    def advice(self, group: ErrorGroup) -> str:
        given = group.facts.compile_arguments.get("backend", "inductor")
        others = [f'"{b}"' for b in ("inductor", "aot_eager", "eager") if b != given]
        return (
            f"fix the error in {self._backend(group)} ({self.short(group)}), or"
            f" compile {group.compiled} with another one (backend={', '.join(others)})"
        )

    def _backend(self, group: ErrorGroup) -> str:
        named = re.search(r"backend='(.+?)'", group.first.message)
        if named is None and group.first.error == "InductorError":
            return "the backend inductor"
        return f"the backend {named[1]}" if named else "the backend"


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
        condition = "with fullgraph=True" if has_fullgraph(group) else "here"
        rule, behind = self._behind(group)
        why = rule.why(behind)
        return f"{condition} a graph break is an error, and {why}"

    def advice(self, group: ErrorGroup) -> str:
        rule, behind = self._behind(group)
        return assembled(
            Piece(unbacked_mark(group) or rule.ways(behind)),
            Piece("drop fullgraph=True", has_fullgraph(group)),
        )

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
