"""NC80x: programs that bypass the compiled code, or in which none runs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import has_setting
from torchproof.checking.rules.rule import (
    AnyGroup,
    EventGroup,
    Facts,
    Fixed,
    G,
    Match,
    Rule,
    grouped,
    plural,
)
from torchproof.checking.static import compiled
from torchproof.checking.static.compiled import Compilation, Compiled
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import (
    Class,
    Definition,
    Source,
    Unreadable,
    walk,
)
from torchproof.records import (
    BreakEvent,
    BypassEvent,
    DeadTensorEvent,
    EagerErrorEvent,
    Event,
    FailureEvent,
    Place,
    RaisedEvent,
    Severity,
    Symptom,
    WrapperEvent,
    cells,
    place_of,
    whose,
)

# Methods besides forward that run a model; nn.Module has none of them.
_METHODS = words(
    "generate encode decode predict sample embed infer encode_image encode_text"
    " forward_features transcribe rollout get_image_features get_text_features"
    " training_step act validation_step test_step predict_step log_prob translate"
)
# Methods of a module that return the module itself.
_SAME = words("to cuda cpu eval train half float bfloat16 double requires_grad_")


WrapperGroup = EventGroup[WrapperEvent]
BypassGroup = EventGroup[BypassEvent]
W = TypeVar("W", bound=WrapperEvent | BypassEvent)


class NoOp(Rule[G]):
    """Base class of the rules for calls that bypass the compiled code."""

    kind = "no_op"
    reference = torch_pages.WHERE


def _bypasses(facts: Facts, *, of_original: bool) -> Iterator[BypassGroup]:
    """One group for all calls of a method, or of originals of a class, at one line."""
    events = facts.of(BypassEvent)
    own = (event for event in events if (event.method == "forward") == of_original)
    for group in by_site(own, facts):
        yield replace(group, count=sum(e.count for e in group.events))


def by_site(events: Iterable[W], facts: Facts) -> Iterator[EventGroup[W]]:
    """One group for all wrappers created at one line for one function."""
    for group in grouped(events, _called_at):
        yield EventGroup(tuple(group), _site(group[0]), facts, count=len(group))


def _called_at(event: WrapperEvent | BypassEvent) -> tuple[object, ...]:
    frame = place_of(event.frames).frame
    line = (frame.file, frame.line) if frame else None
    if isinstance(event, WrapperEvent):
        return line, event.name
    return line, event.model, event.method


def _site(event: Event) -> Place:
    place = place_of(event.frames)
    return (
        place if place.frame or event.function is None else place_of((event.function,))
    )


class NeverCalled(NoOp[WrapperGroup]):
    """The result of torch.compile is never called.

    ## Why
    torch.compile does not change the function or module; it returns a compiled one.

    ## Bad
        torch.compile(model)
        model(x)

    ## Good
        torch.compile(model)(x)      # or model.compile(); model(x)

    ## Fix safety
    The compiled one gives the same values up to rounding. A function that is compiled
    where its module is imported may simply not be part of these calls: that is `low`.
    """

    code = "NC801"
    rewrites = ("compiling.assign", "compiling.in_place")
    certain = True
    cause_text = (
        "torch.compile leaves {at.first.name} as it is and returns a compiled"
        " {at.first.what}, which nothing calls"
    )
    source_severity = "high"
    shown_by = ("NC801", "NC803")
    source_text = "`{at.expression}` has no effect: the program discards its result"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[WrapperGroup]:
        if not facts.complete:
            return
        bypasses = facts.of(BypassEvent)
        called = {event.module for event in bypasses}
        yield from by_site(
            (
                e
                for e in facts.of(WrapperEvent)
                if e.calls == 0
                and not e.inlined
                and not e.off
                and (e.module is None or e.module not in called)
            ),
            facts,
        )

    def severity(self, group: WrapperGroup) -> Severity:
        return "low" if self._is_imported(group) else super().severity(group)

    def _is_imported(self, group: WrapperGroup) -> bool:
        """Whether all of them were compiled by the import of their module."""
        return all(_compiled_by_import(event) for event in group.events)

    def cause(self, group: WrapperGroup) -> str:
        if self._is_imported(group):
            return (
                f"{group.first.name} is compiled when its module is imported, and"
                " these calls do not reach it"
            )
        return super().cause(group)

    def message(self, group: WrapperGroup) -> str:
        times = f" ({group.count} of them)" if (group.count or 1) > 1 else ""
        if self._is_imported(group):
            return (
                f"{group.first.name} is compiled here{times}, but not exercised by"
                " these calls"
            )
        return (
            f"{group.first.name} is compiled here{times}, but the compiled"
            f" {group.first.what} is never called"
        )

    def advice(self, group: WrapperGroup) -> str:
        name = group.first.name
        if not group.facts.calls and (command := group.facts.factory_command):
            return f"name the factory whose calls reach {name}: {command}"
        if self._is_imported(group):
            return (
                f"check a target whose calls reach {name}; if these calls should reach"
                f" it, call {name} itself, not the function that it wraps"
            )
        code = group.frame.code if group.frame else ""
        assigned = re.match(r"([\w.]+)\s*=\s*torch\.compile\(\s*([\w.]+)", code)
        if assigned and assigned[1] != assigned[2]:
            return f"use {assigned[1]} where you use {assigned[2]} now"
        if group.first.what == "module":
            return (
                f"use the result: model = torch.compile(model), or compile {name} in"
                " place with model.compile()"
            )
        return (
            f"use the result: {name} = torch.compile({name}), or decorate {name} with"
            " @torch.compile"
        )

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        for site in file.sites:
            statement = source.parents.get(site.node)
            if not isinstance(statement, ast.Expr) or site.subject is None:
                continue
            if source.is_inside(statement, ast.With, ast.Try):
                continue  # a test may expect that the call raises
            subject = source.text_of(site.subject)
            yield Match(
                site.node,
                event=WrapperEvent(name=source.brief(site.subject), what="one"),
                advice=f"use the result: {subject} = torch.compile({subject}), or compile"
                f" a module in place with {subject}.compile()",
            )


def _compiled_by_import(event: Event) -> bool:
    """Whether importing a module compiled it, rather than code made for the target.

    That is a decorated function of a module or class, or a statement of a module that
    the program imports. The program's own main file is run, not only imported.
    """
    program = [
        number
        for number, frame in enumerate(event.frames)
        if whose(frame.file) in {"user", "library"}
    ]
    if not program:
        return False
    site, function = event.frames[program[-1]], event.function
    if site.function == "<module>" and len(program) > 1:
        between = event.frames[program[-2] + 1 : program[-1]]
        if any(frame.function == "_find_and_load" for frame in between):
            return True
    return (
        function is not None
        and site.file == function.file
        and (function.line, site.line) in _decorators(site.file)
    )


@functools.lru_cache(maxsize=64)
def _decorators(file: str) -> frozenset[tuple[int, int]]:
    """The first line of each decorated function that no function contains.

    With it, each line of a decorator.
    """
    try:
        source = Source.read(Path(file))
    except Unreadable:
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        (node.decorator_list[0].lineno, line)
        for node in source.nodes
        if isinstance(node, functions) and node.decorator_list
        if not source.is_inside(node, *functions)
        for each in node.decorator_list
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    )


class OtherMethod(NoOp[BypassGroup]):
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
    rewrites = ("compiling.in_place", "compiling.method")
    source_text = "`{at.expression}` on the compiled module would run uncompiled"
    cause_text = (
        "torch.compile(module) compiles forward only; {at.first.method} is the"
        " original's own method"
    )
    certain = False
    shown_by = ("NC802",)
    advice_text = (
        "if {at.first.method} calls forward, compile in place with model.compile(), so"
        " that it calls the compiled forward; otherwise compile the method itself:"
        " model.{at.first.method} = torch.compile(model.{at.first.method})"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[BypassGroup]:
        return _bypasses(facts, of_original=False)

    def message(self, group: BypassGroup) -> str:
        model, method = group.first.model, group.first.method
        return (
            f"{model}.{method}() is called on the compiled module and runs uncompiled,"
            f" {plural(group.count or 1, 'time')}"
        )

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        if not file.sites:
            return
        for node in source.nodes:
            called = node.func if isinstance(node, ast.Call) else None
            if not isinstance(called, ast.Attribute):
                continue
            site = file.of(called.value)
            if site is not None and _is_other(called.attr, site, file):
                yield Match(node, event=BypassEvent(method=called.attr))


def _is_other(name: str, site: Compiled, file: Compilation) -> bool:
    """Whether a method runs the model's own code but is not compiled."""
    if site.subject is None:
        return False
    cls = _class(site, file)
    if cls is None:
        return name in _METHODS and not _is_function(site, file)
    method = cls.methods.get(name)
    if method is None:
        return name in _METHODS
    plain = name.startswith("_") or name in ("forward", "train", "eval", "compile")
    runs = any("compile" in each for each in method.decorators)
    special = {"property", "staticmethod", "classmethod"} & set(method.decorators)
    computes = len(method.node.args.args) > 1  # methods that run a model take inputs
    return not plain and not runs and not special and computes


def _class(site: Compiled, file: Compilation) -> Class | None:
    """The class of the compiled module, if the file shows it."""
    made = file.bindings.origin(site.subject)
    called = made.func if isinstance(made, ast.Call) else None
    return file.source.classes.get(file.source.dotted(called) or "")


def _is_function(site: Compiled, file: Compilation) -> bool:
    subject = site.subject
    if not isinstance(subject, ast.Name):
        return isinstance(subject, ast.Lambda | ast.Attribute) and not (
            isinstance(subject, ast.Attribute) and "model" in subject.attr
        )
    return isinstance(file.bindings.meaning(subject), Definition)


class OriginalCalled(NoOp[BypassGroup]):
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
    rewrites = ("compiling.call_result", "compiling.assign", "compiling.in_place")
    cause_text = (
        "`{at.expression}` calls the module that was given to torch.compile, not what"
        " it returned"
    )
    advice_text = (
        "call the compiled module at `{at.expression}`: model = torch.compile(model),"
        " or compile in place with model.compile()"
    )
    certain = False
    shown_by = ("NC803", "NC801")
    message_text = (
        "the uncompiled {at.first.model} is called {at.times}, although a compiled one"
        " exists"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[BypassGroup]:
        return _bypasses(facts, of_original=True)

    def severity(self, group: BypassGroup) -> Severity:
        used = any(wrapper.calls for wrapper in self._compiled(group))
        return "medium" if used else "high"

    def _compiled(self, group: BypassGroup) -> list[WrapperEvent]:
        """The compiled ones of the modules that are called."""
        modules = {event.module for event in group.events}
        wrappers = group.facts.of(WrapperEvent)
        return [w for w in wrappers if w.module in modules]

    def evidence(self, group: BypassGroup) -> Iterable[str]:
        for wrapper in self._compiled(group):
            site = place_of(wrapper.frames).frame
            if site is not None:
                yield (
                    f"compiled at {cells.place(site.file, site.line)}, called"
                    f" {wrapper.calls} times"
                )

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        for site in file.sites:
            result, subject = file.name(site), site.subject
            if result is None or not isinstance(subject, ast.Name | ast.Attribute):
                continue
            names = source.dotted(result), source.dotted(subject)
            if None in names or names[0] == names[1] or _is_read(result, file):
                continue
            call = _first_call(subject, site, file)
            if call is not None:
                yield Match(
                    call,
                    f"{source.quote(call)} runs uncompiled: the compiled one is"
                    f" {names[0]}, and nothing uses it",
                )


def _first_call(
    subject: ast.Name | ast.Attribute, site: Compiled, file: Compilation
) -> ast.Call | None:
    """The first call of the original after compiling, or in another method."""
    is_attribute = isinstance(subject, ast.Attribute)
    scope = file.bindings.scope(site.node)
    if is_attribute:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = file.bindings.scope(scope)
    name = file.source.dotted(subject)
    for node in walk(scope):
        if isinstance(node, ast.Call) and file.source.dotted(node.func) == name:
            later = node.lineno > site.node.lineno
            if later or (is_attribute and file.bindings.scope(node) is not scope):
                return node
    return None


def _is_read(name: ast.expr, file: Compilation) -> bool:
    """Whether code in the file reads the name, or the file exports it."""
    last = name.id if isinstance(name, ast.Name) else getattr(name, "attr", "")
    if last in _exported(file.source):
        return True
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) == last
        and isinstance(node.ctx, ast.Load | ast.Del)
        for node in file.source.nodes
    )


def _exported(source: Source) -> set[str]:
    declared = {n for g in source.nodes if isinstance(g, ast.Global) for n in g.names}
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            declared |= {compiled.literal(each) or "" for each in walk(node)}
    return declared


class SwitchedOff(NoOp[WrapperGroup]):
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
    message_text = "{at.first.name} is not compiled: {switch} switches compilation off"
    cause_text = "{switch} makes torch.compile do nothing"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[WrapperGroup]:
        yield from by_site(
            (e for e in facts.of(WrapperEvent) if e.off or e.eager_stance),
            facts,
        )

    def words(self, group: WrapperGroup) -> dict[str, object]:
        return {"switch": self._switch(group)}

    def advice(self, group: WrapperGroup) -> str:
        if group.first.off:
            return f"unset {self._switch(group)}"
        return (
            'remove torch.compiler.set_stance("force_eager"), or set the stance back to'
            ' "default" before the call'
        )

    def _switch(self, group: WrapperGroup) -> str:
        if not group.first.off:
            return 'the stance "force_eager"'
        variables = group.facts.observation.environment.get("variables") or {}
        for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
            if variables.get(name, "0") not in {"", "0"}:
                return f"{name}={variables[name]}"
        return "torch._dynamo.config.disable"


class NothingCompiled(NoOp[WrapperGroup]):
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
    fixed = (Fixed("2.15", "`nn.Sequential(...).compile()`", how="compiles this"),)
    reference = torch_pages.SKIPPED

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[WrapperGroup]:
        failed = {e.function for e in facts.of(FailureEvent, EagerErrorEvent)}
        errors = facts.of(RaisedEvent) or any(
            e.raised for e in facts.of(DeadTensorEvent)
        )
        yield from by_site(
            (
                e
                for e in facts.of(WrapperEvent)
                if e.calls
                and not e.compiled_calls
                and not e.off
                and not e.eager_stance
                and e.function not in failed
                and not errors
            ),
            facts,
        )

    def message(self, group: WrapperGroup) -> str:
        calls = sum(e.calls or 0 for e in group.events)
        return (
            f"{group.first.name} is compiled and called {plural(calls, 'time')},"
            " but no compiled code ever ran"
        )

    def cause(self, group: WrapperGroup) -> str:
        breaks = self._breaks(group)
        name = group.first.name
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
        if all("disable" in b.reason.type for b in breaks):
            return "everything in it is inside functions marked torch.compiler.disable"
        if not any(isinstance(b, BreakEvent) and b.skips for b in breaks):
            return f"its graph breaks leave nothing to compile: {breaks[0].reason.type}"
        return f"every frame was skipped, first because of: {breaks[0].reason.type}"

    def symptom(self, group: WrapperGroup) -> Symptom | None:
        breaks = self._breaks(group)
        of_torch = self._is_torch_module(group)
        if of_torch or all("disable" in b.reason.type for b in breaks):
            return None
        return Symptom(breaks[0].reason.type)

    def advice(self, group: WrapperGroup) -> str:
        breaks = self._breaks(group)
        name = group.first.name
        if self._is_torch_module(group):
            return f"use model = torch.compile(model) for a {name}, not model.compile()"
        if not breaks:
            return (
                f"do not compile {name}, or compile the function that computes with"
                " tensors"
            )
        place = place_of(breaks[0].frames).frame
        where = f" at line {place.line} (`{place.expression}`)" if place else ""
        if all("disable" in b.reason.type for b in breaks):
            return (
                f"remove torch.compiler.disable from the function called{where}, or do"
                f" not compile {name}"
            )
        failed = not isinstance(breaks[0], BreakEvent) or not breaks[0].logged
        hides = has_setting(group, "torch._dynamo.config.suppress_errors", value=True)
        if failed and hides and not breaks[0].reason.type.startswith("Attempt"):
            return (
                f"torch._dynamo.config.suppress_errors hides a compile error{where}:"
                " fix it first"
            )
        return f"fix the break{where} first, then check again: it hides later breaks"

    def _is_torch_module(self, group: WrapperGroup) -> bool:
        """Whether it is Module.compile() on a torch.nn class: that compiles nothing."""
        function = group.first.function
        is_torch = function is not None and whose(function.file) == "torch"
        return is_torch and bool(group.first.in_place) and not self._breaks(group)

    def severity(self, group: WrapperGroup) -> Severity:
        explained = self._breaks(group) or self._is_torch_module(group)
        return "high" if explained else "medium"

    def _breaks(self, group: WrapperGroup) -> tuple[BreakEvent | FailureEvent, ...]:
        return group.facts.of(BreakEvent, FailureEvent)


class NoCompileCall(NoOp[AnyGroup]):
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
    advice_text = "compile the model (model.compile(), or model = torch.compile(model))"

    def cause(self, group: AnyGroup) -> str:
        if factories := group.facts.observation.factories:
            return f"run as a script, it does not call {', '.join(factories)}"
        return super().cause(group)

    def advice(self, group: AnyGroup) -> str:
        if command := group.facts.factory_command:
            return f"name the factory: {command}"
        if group.facts.observation.as_written:
            return f"leave out --as-written, or {self.advice_text}"
        return self.advice_text

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[AnyGroup]:
        live = facts.calls is not None
        if live and facts.complete and not facts.of(WrapperEvent):
            yield AnyGroup((Event(),), Place(None, None, None), facts)
