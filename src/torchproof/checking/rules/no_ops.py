"""NC80x: programs that bypass the compiled code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural
from torchproof.records import Event, Place, Severity, place_of


class NoOp(Rule):
    """Base class of the rules for calls that bypass the compiled code."""

    kind = "no_op"
    reference = torch_pages.WHERE


def by_site(events: Iterable[Event], facts: Facts) -> Iterator[EventGroup]:
    """One group for all wrappers created at one line for one function."""
    groups: dict[tuple[object, ...], list[Event]] = {}
    for event in events:
        place = place_of(event.frames)
        where = (place.frame.file, place.frame.line) if place.frame else None
        groups.setdefault(
            (where, event.data.get("name") or event.data.get("model")), []
        ).append(event)
    for group in groups.values():
        yield EventGroup(tuple(group), _site(group[0]), facts, count=len(group))


def _site(event: Event) -> Place:
    place = place_of(event.frames)
    return (
        place if place.frame or event.function is None else place_of((event.function,))
    )


class NeverCalled(NoOp):
    """The result of torch.compile is never called.

    ## Why
    torch.compile does not change the function or module; it returns a compiled one.

    ## Bad
        torch.compile(model)
        model(x)

    ## Good
        torch.compile(model)(x)      # or model.compile(); model(x)

    ## Fix safety
    The compiled one gives the same values up to rounding.
    """

    code = "NC801"
    cause_text = (
        "torch.compile leaves {at.data[name]} as it is and returns a compiled"
        " {at.data[what]}, which nothing calls"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        if not facts.complete:
            return
        called = {e.data["model"] for e in facts.events("original_call", "method_call")}
        yield from by_site(
            (
                e
                for e in facts.events("wrapper")
                if e.data["calls"] == 0
                and not e.data["inlined"]
                and not e.data["off"]
                and e.data["name"] not in called
            ),
            facts,
        )

    def message(self, group: EventGroup) -> str:
        times = f" ({group.count} of them)" if (group.count or 1) > 1 else ""
        return (
            f"{group.data['name']} is compiled here{times}, but the compiled"
            f" {group.data['what']} is never called"
        )

    def fix(self, group: EventGroup) -> str:
        name = group.data["name"]
        if group.data["what"] == "module":
            return (
                f"use the result: model = torch.compile(model), or compile {name} in"
                " place with model.compile()"
            )
        return (
            f"use the result: {name} = torch.compile({name}), or decorate {name} with"
            " @torch.compile"
        )


class OtherMethod(NoOp):
    """A method other than forward is called on a compiled module.

    ## Why
    torch.compile(module) compiles forward only; other methods run uncompiled.

    ## Bad
        compiled = torch.compile(model)
        compiled.encode(x)

    ## Good
        model.encode = torch.compile(model.encode)
        model.encode(x)

    ## Fix safety
    The compiled method gives the same values up to rounding.
    """

    code = "NC802"
    cause_text = (
        "torch.compile(module) compiles forward only; {at.data[method]} is the"
        " original's own method"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        groups: dict[tuple[object, ...], list[Event]] = {}
        for event in facts.events("method_call"):
            place = place_of(event.frames)
            where = (place.frame.file, place.frame.line) if place.frame else None
            groups.setdefault(
                (where, event.data["model"], event.data["method"]), []
            ).append(event)
        for group in groups.values():
            count = group[0].data["count"] or len(group)
            yield EventGroup(tuple(group), _site(group[0]), facts, count=count)

    def message(self, group: EventGroup) -> str:
        model, method = group.data["model"], group.data["method"]
        return (
            f"{model}.{method}() is called on the compiled module and runs uncompiled,"
            f" {plural(group.count or 1, 'time')}"
        )

    def fix(self, group: EventGroup) -> str:
        method = group.data["method"]
        return (
            f"if {method} calls forward, compile in place with model.compile(), so that"
            " it calls the compiled forward; otherwise compile the method itself:"
            f" model.{method} = torch.compile(model.{method})"
        )


class OriginalCalled(NoOp):
    """The uncompiled module is called instead of the compiled one.

    ## Why
    torch.compile(module) returns a new module; the original stays eager.

    ## Bad
        compiled = torch.compile(model)
        loss = model(x)

    ## Good
        loss = compiled(x)

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "NC803"
    cause_text = (
        "`{at.expression}` calls the module that was given to torch.compile, not what"
        " it returned"
    )
    fix_text = (
        "call the compiled module at `{at.expression}`: model = torch.compile(model),"
        " or compile in place with model.compile()"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        for group in by_site(facts.events("original_call"), facts):
            yield EventGroup(
                group.events,
                group.place,
                facts,
                count=group.data["count"] or group.count,
            )

    def message(self, group: EventGroup) -> str:
        times = plural(group.count or 1, "time")
        return (
            f"the uncompiled {group.data['model']} is called {times}, although a"
            " compiled one exists"
        )

    def severity(self, group: EventGroup) -> Severity:
        model = group.data["model"]
        used = any(
            w.data["calls"]
            for w in group.facts.events("wrapper")
            if w.data["name"] == model
        )
        return "medium" if used else "high"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        for wrapper in group.facts.events("wrapper"):
            site = place_of(wrapper.frames).frame
            if site is not None and wrapper.data["name"] == group.data["model"]:
                yield (
                    f"compiled at {site.file}:{site.line}, called"
                    f" {wrapper.data['calls']} times"
                )


class SwitchedOff(NoOp):
    """The environment, a setting or a stance switches compilation off.

    ## Why
    TORCH_COMPILE_DISABLE, torch._dynamo.config.disable and set_stance("force_eager")
    make torch.compile do nothing, without a warning.

    ## Bad
        TORCH_COMPILE_DISABLE=1 python train.py

    ## Good
        unset TORCH_COMPILE_DISABLE

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "NC804"
    reference = torch_pages.STANCES
    message_text = "{at.data[name]} is not compiled: {switch} switches compilation off"
    cause_text = "{switch} makes torch.compile do nothing"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        yield from by_site(
            (
                e
                for e in facts.events("wrapper")
                if e.data["off"] or e.data["eager_stance"]
            ),
            facts,
        )

    def words(self, group: EventGroup) -> dict[str, object]:
        return {"switch": self._switch(group)}

    def fix(self, group: EventGroup) -> str:
        if group.data["off"]:
            return f"unset {self._switch(group)}"
        return (
            'remove torch.compiler.set_stance("force_eager"), or set the stance back to'
            ' "default" before the call'
        )

    def _switch(self, group: EventGroup) -> str:
        if not group.data["off"]:
            return 'the stance "force_eager"'
        variables = group.facts.observation.environment.get("variables") or {}
        for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
            if variables.get(name, "0") not in {"", "0"}:
                return f"{name}={variables[name]}"
        return "torch._dynamo.config.disable"
