"""NC805, NC806: programs in which no compiled code runs."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.breaks import is_error
from torchproof.checking.rules.no_ops import NoOp, by_site
from torchproof.checking.rules.rule import EventGroup, Facts, plural
from torchproof.records import Event, Place, Severity, place_of, whose


class NothingCompiled(NoOp):
    """A compiled function is called, but no compiled code runs.

    ## Why
    Every frame was skipped, disabled, or had nothing to compile. Everything runs
    eagerly, and torch.compile only adds its overhead.

    ## Bad
        for x in xs: total += x.sum().item()     # a break in a loop skips the frame

    ## Good
        total = torch.stack(xs).sum()

    ## Fix safety
    See the rule of the break that the finding names.
    """

    code = "NC805"
    reference = torch_pages.SKIPPED

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        failed = {e.function for e in facts.events("compile_failure") if is_error(e)}
        errors = facts.events("call_error")
        yield from by_site(
            (
                e
                for e in facts.events("wrapper")
                if e.data["calls"]
                and not e.data["compiled_calls"]
                and not e.data["off"]
                and not e.data["eager_stance"]
                and e.function not in failed
                and not errors
            ),
            facts,
        )

    def message(self, group: EventGroup) -> str:
        calls = sum(e.data["calls"] for e in group.events)
        return (
            f"{group.data['name']} is compiled and called {plural(calls, 'time')},"
            " but no compiled code ever ran"
        )

    def cause(self, group: EventGroup) -> str:
        breaks = self._breaks(group)
        name = group.data["name"]
        if self._is_torch_module(group):
            return (
                f"{name}.forward is torch's own code, which compiling in place does not"
                " trace"
            )
        if not breaks:
            return (
                f"no tensor operation of {name} was captured: there is nothing to"
                " compile"
            )
        if all("disable" in b.data["type"] for b in breaks):
            return "everything in it is inside functions marked torch.compiler.disable"
        if not any(b.data.get("skips") for b in breaks):
            return (
                f"its graph breaks leave nothing to compile: {breaks[0].data['type']}"
            )
        return f"every frame was skipped, first because of: {breaks[0].data['type']}"

    def fix(self, group: EventGroup) -> str:
        breaks = self._breaks(group)
        name = group.data["name"]
        if self._is_torch_module(group):
            return f"use model = torch.compile(model) for a {name}, not model.compile()"
        if not breaks:
            return (
                f"do not compile {name}, or compile the function that computes with"
                " tensors"
            )
        place = place_of(breaks[0].frames).frame
        where = f" at line {place.line} (`{place.expression}`)" if place else ""
        if all("disable" in b.data["type"] for b in breaks):
            return (
                f"remove torch.compiler.disable from the function called{where}, or do"
                f" not compile {name}"
            )
        if breaks[0].kind == "compile_failure" and not breaks[0].data[
            "type"
        ].startswith("Attempt"):
            return (
                f"torch._dynamo.config.suppress_errors hides a compile error{where}:"
                " fix it first"
            )
        return f"fix the break{where} first, then check again: it hides later breaks"

    def _is_torch_module(self, group: EventGroup) -> bool:
        """Whether it is Module.compile() on a torch.nn class: that compiles nothing."""
        function = group.first.function
        is_torch = function is not None and whose(function.file) == "torch"
        return is_torch and bool(group.data["in_place"]) and not self._breaks(group)

    def severity(self, group: EventGroup) -> Severity:
        explained = self._breaks(group) or self._is_torch_module(group)
        return "high" if explained else "medium"

    def _breaks(self, group: EventGroup) -> list[Event]:
        return group.facts.events("graph_break", "compile_failure")


class NoCompileCall(NoOp):
    """The program never calls torch.compile.

    ## Why
    Nothing is compiled, so there is nothing to check.

    ## Bad
        model(x)

    ## Good
        model = torch.compile(model)
        model(x)

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "NC806"
    message_text = "the program never calls torch.compile: everything runs eagerly"
    cause_text = "no call of torch.compile was made, by the program or what it imports"
    fix_text = (
        "compile the model (model.compile(), or model = torch.compile(model)); for a"
        " factory, leave out --as-written"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[EventGroup]:
        live = facts.calls is not None
        if live and facts.complete and not facts.events("wrapper"):
            yield EventGroup((Event("nothing"),), Place(None, None, None), facts)
