"""NM40x: compiled outputs that differ from eager's by more than rounding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import (
    EventGroup,
    Facts,
    Rule,
    event_place,
    grouped,
    stack,
)
from torchproof.records import Event, Frame

_GENERATED = ("Inductor", "the backend")


def events_from(plain: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Events restored from `dataclasses.asdict` or from JSON."""
    return [
        Event(
            kind=entry["kind"],
            frames=tuple(_frame(each) for each in entry["frames"]),
            function=_frame(entry["function"]) if entry["function"] else None,
            data=entry["data"],
            call=entry["call"],
        )
        for entry in plain
    ]


def _frame(plain: Mapping[str, Any]) -> Frame:
    columns = plain["columns"]
    return Frame(**{**plain, "columns": tuple(columns) if columns else None})


def answer_groups(facts: Facts, kind: str) -> Iterator[EventGroup]:
    """One group per place and cause."""

    def key(event: Event) -> object:
        what = (event.data.get(name) for name in ("what", "name", "layer"))
        return event_place(event), *what

    for group in grouped(facts.events(kind), key):
        yield EventGroup(tuple(group), event_place(group[0]), facts)


class WrongAnswer(Rule):
    """Base class of the rules for wrong outputs; each rule knows one cause."""

    kind = "numerics"
    parts = ("baseline",)
    reference = torch_pages.NUMERICS

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        return answer_groups(facts, "wrong_answer")

    def words(self, group: EventGroup) -> dict[str, object]:
        return {"where": self.at(group), "difference": self.difference(group)}

    def at(self, group: EventGroup) -> str:
        """The expression that causes the difference, or else the function."""
        if group.first.frames and group.expression:
            return f"`{group.expression}` in {group.function}"
        return group.function

    def difference(self, group: EventGroup) -> str:
        """In which call and output, and by how much."""
        numerics = group.data.get("numerics") or {}
        value = group.data.get("value") or numerics
        why = f": {value['why']}" if value.get("why") else ""
        return f"{numerics.get('where') or 'an output'}{why}"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        numerics = group.data.get("numerics") or {}
        if numerics.get("max_rel_error") is not None:
            yield (
                f"relative error {numerics['max_rel_error']:.3g}, eager's own"
                f" {numerics.get('eager_error') or 0.0:.3g}, against"
                f" {numerics.get('reference') or 'eager'}"
            )
        if group.data.get("layer"):
            yield f"first wrong in {group.data['layer']}"
        yield from stack(group)


class GeneratedCode(WrongAnswer):
    """Generated code computes another value than eager, beyond rounding.

    ## Why
    The captured graph is right, and so are the layers before code generation. The
    generated kernel for this operation is wrong for these values.

    ## Bad
        torch.acosh(x)                   # x holds 1e20: inf on CPU with torch 2.13

    ## Good
        torch.acosh(x.double()).float()

    ## Fix safety
    A function marked @torch.compiler.disable computes what eager computes.
    """

    code = "NM401"
    message_text = (
        "{where} computes another value compiled than in eager ({difference})"
    )

    def matches(self, group: EventGroup) -> bool:
        return (group.data.get("layer") or "").startswith(_GENERATED)

    def cause(self, group: EventGroup) -> str:
        operation = group.data.get("operation")
        what = f" of {operation}" if operation else ""
        return (
            f"the code{what} that {group.data['layer']} generates is wrong for these"
            " values: tracing and the layers before it give eager's answers"
        )

    def fix(self, group: EventGroup) -> str:
        what = self.at(group)
        report = "and report it to PyTorch with a minimal program"
        if str(group.data.get("gives", "")).startswith("torch.uint"):
            return (
                f"convert through a signed type in {what}, e.g."
                " .to(torch.int64).to(torch.uint8), or clamp first: an unsigned type"
                " cannot represent a negative number; or isolate it in a function"
                f" marked @torch.compiler.disable, {report}"
            )
        if not group.data.get("operation"):
            return (
                f"isolate the wrong part: mark functions that {group.function} calls"
                " with @torch.compiler.disable until the outputs agree, keep that"
                f" function disabled, {report}"
            )
        return (
            f"isolate {what} in a function marked @torch.compiler.disable, or compute"
            f" it in float64 (x.double()), {report}"
        )


class EarlierLayer(WrongAnswer):
    """Compiled outputs are wrong before any code is generated.

    ## Why
    Tracing, functionalisation or a decomposition changes what the program computes.

    ## Bad
        torch.compile(f, backend="aot_eager")     # differs from f

    ## Good
        # move the wrong part of f into a function marked @torch.compiler.disable

    ## Fix safety
    A function marked @torch.compiler.disable computes what eager computes.
    """

    code = "NM402"
    reference = torch_pages.REPORTING
    message_text = (
        "{where} computes another value compiled than in eager, already in"
        " {at.data[layer]} ({difference})"
    )
    cause_text = (
        "{at.data[layer]} is the first layer that is wrong; the layers before it give"
        " eager's answers"
    )
    fix_text = (
        "isolate {where} in a function marked @torch.compiler.disable, and report it to"
        " PyTorch with a minimal program"
    )

    def matches(self, group: EventGroup) -> bool:
        return bool(group.data.get("layer"))


class UndeclaredMutation(WrongAnswer):
    """A custom operator changes an argument without declaring it.

    ## Why
    The compiler relies on the declaration: it may drop, move or repeat the call.

    ## Bad
        @torch.library.custom_op("lib::scale", mutates_args=())
        def scale(x: Tensor) -> None: x.mul_(2)

    ## Good
        @torch.library.custom_op("lib::scale", mutates_args=("x",))

    ## Fix safety
    Eager computes the same values. torch.library.opcheck tests the declaration.
    """

    code = "NM403"
    reference = torch_pages.CUSTOM_OPERATORS
    message_text = (
        "{where} calls {at.data[operation]}, which changes {names} without declaring"
        " it: compiled outputs are wrong ({difference})"
    )
    cause_text = (
        "{at.data[operation]} is declared not to change {names}; from {at.data[layer]}"
        " on the compiler relies on that"
    )

    def matches(self, group: EventGroup) -> bool:
        return bool(group.data.get("undeclared"))

    def words(self, group: EventGroup) -> dict[str, object]:
        names = " and ".join(group.data["undeclared"])
        return {**super().words(group), "names": names}

    def fix(self, group: EventGroup) -> str:
        listed = "".join(f'"{name}", ' for name in group.data["undeclared"])
        return (
            f"declare it where {group.data['operation']} is defined:"
            f" mutates_args=({listed.rstrip()}), or make it change and return a clone"
        )


class OtherRandomNumbers(WrongAnswer):
    """Compiled code draws other random numbers than eager, from the same seed.

    ## Why
    Inductor has its own random stream. With eager's random stream the outputs agree.

    ## Bad
        assert torch.equal(compiled(x), model(x))          # with dropout

    ## Good
        torch._inductor.config.fallback_random = True      # to compare

    ## Fix safety
    You do not need to fix anything. Eager's random stream costs speed.
    """

    code = "NM404"
    reference = torch_pages.RANDOMNESS
    run_severity = "low"
    message_text = "{at.function} draws other random numbers compiled than in eager"
    cause_text = "Inductor has its own random stream; with eager's the answers agree"
    fix_text = (
        "expected and harmless; to compare number by number, set"
        " torch._inductor.config.fallback_random = True"
    )

    def matches(self, group: EventGroup) -> bool:
        return bool(group.data.get("layer") == "the random stream")


class CompilingBranch(WrongAnswer):
    """Code checks whether it is being compiled, and then computes something else.

    ## Why
    In compiled code `is_compiling()` is True, so the code takes another branch.

    ## Bad
        y = x * 2 if torch.compiler.is_compiling() else x * 3

    ## Good
        y = x * 3

    ## Fix safety
    Only the author knows which branch is right.
    """

    code = "NM405"
    message_text = (
        "{where} takes another branch when compiled, and that branch computes another"
        " value ({difference})"
    )
    cause_text = (
        "{at.data[asks]}() is True in compiled code; eager told the same gives the"
        " compiled answer"
    )
    fix_text = (
        "remove the {at.data[asks]}() branch, or make both branches compute the same"
        " values; use it only for code that does not change values, such as logging"
    )

    def matches(self, group: EventGroup) -> bool:
        return bool(group.data.get("asks"))


class WrongOnce(WrongAnswer):
    """A compiled output was wrong once, and right when the calls ran again.

    ## Why
    Possible causes: a race, memory that is read before it is written, or a kernel that
    autotuning chose by its timing.

    ## Bad
        torch.compile(model, mode="max-autotune")    # chose a kernel that is wrong

    ## Good
        torch.compile(model)                         # the default mode

    ## Fix safety
    Another mode gives the same values up to rounding.
    """

    code = "NM409"
    message_text = (
        "{at.function} computed another value compiled than in eager, and the right one"
        " when it was compiled again"
    )
    cause_text = "not found: no layer of the compiler repeated the wrong answer"
    fix_text = (
        "run the check again; if the finding returns, compile with the default mode and"
        " report it to PyTorch"
    )

    def matches(self, group: EventGroup) -> bool:
        return True
