"""NC80x: programs that bypass the compiled code, or in which none runs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import in_force, user_files
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
from torchproof.checking.rules.user_patterns import is_prefill
from torchproof.checking.static import bindings, changes, compiled
from torchproof.checking.static.compiled import Compilation, Compiled
from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Class, Definition, Source, walk
from torchproof.records import (
    BreakEvent,
    BypassEvent,
    DeadTensorEvent,
    EagerErrorEvent,
    Event,
    FailureEvent,
    Place,
    RaisedEvent,
    Remedy,
    Setting,
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
# Attributes that a compiled module has in the same form as the original.
_SAME = words(
    "to cuda cpu eval train half float bfloat16 double requires_grad_ parameters"
    " zero_grad modules training buffers"
)
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


def _rebound(node: ast.expr, subject: ast.AST, new: str, source: Source) -> str | None:
    """`model = ` with what a statement would compute, if later code then uses that.

    None where the statement's function is not the one that owns the name, nothing calls
    it later, or something asks for an attribute that only the original has.
    """
    if not isinstance(source.parents.get(node), ast.Expr):
        return None
    names = bindings.of(source)
    scope: ast.AST | None = names.scope(node)
    if isinstance(subject, ast.Name):
        scope = scope if names.owner(subject) is scope else None
    else:
        classes = (up for up in source.above(node) if isinstance(up, ast.ClassDef))
        scope = next(classes, None) if source.own(subject) else None
    if scope is None:
        return None
    later = [
        source.parents.get(each)
        for each in walk(scope)
        if isinstance(each, ast.Name | ast.Attribute)
        if each.lineno > (node.end_lineno or 0) or source.own(subject)
        if isinstance(each.ctx, ast.Load) and each is not subject
        if source.dotted(each) == source.dotted(subject)
    ]
    others = [up for up in later if isinstance(up, ast.Attribute)]
    calls = any(isinstance(up, ast.Call) for up in later)
    if not calls or any(up.attr not in _SAME for up in others):
        return None
    return f"{changes.code(source, subject)} = {new}"


class NeverCalled(NoOp[WrapperGroup]):
    """The result of torch.compile is never called.

    ## Why
    torch.compile does not change the function or module; it returns a compiled one.

    ## Bad
        torch.compile(model)
        model(x)

    ## Good
        model = torch.compile(model)      # or model.compile(), in place
        model(x)

    ## Fix safety
    The compiled one gives the same values up to rounding. A function that is compiled
    where its module is imported may simply not be part of these calls: that is `low`,
    and checking a target whose calls reach it shows more.
    """

    code = "NC801"
    certain = True
    message_text = (
        "{name} is compiled here{times}, but the compiled {what} is never called"
    )
    cause_text = (
        "torch.compile leaves {at.first.name} as it is and returns a compiled"
        " {at.first.what}, which nothing calls"
    )
    advice_text = "use what torch.compile returns: `{name} = torch.compile({name})`"
    source_severity = "high"
    shown_by = ("NC801", "NC803")
    source_text = "`{at.expression}` has no effect: the program discards its result"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[WrapperGroup]:
        if not facts.complete:
            return
        called = {event.module for event in facts.of(BypassEvent)}
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

    def words(self, group: WrapperGroup) -> dict[str, object]:
        count = group.count or 1
        return {
            "name": group.first.name,
            "what": group.first.what,
            "times": f" ({count} of them)" if count > 1 else "",
        }

    def _is_imported(self, group: WrapperGroup) -> bool:
        """Whether all of them were compiled by the import of their module."""
        return all(map(_compiled_by_import, group.events))

    def severity(self, group: WrapperGroup) -> Severity:
        return "low" if self._is_imported(group) else super().severity(group)

    def cause(self, group: WrapperGroup) -> str:
        if not self._is_imported(group):
            return super().cause(group)
        what = "{name} is compiled when its module is imported; these calls miss it"
        return self.say(what, group)

    def message(self, group: WrapperGroup) -> str:
        if not self._is_imported(group):
            return super().message(group)
        return self.say(
            "{name} is compiled here{times}, but not called in this run", group
        )

    def advice(self, group: WrapperGroup) -> str:
        name = group.first.name
        if not group.facts.calls and (command := group.facts.factory_command):
            return f"name the factory whose calls reach {name}: {command}"
        if self._is_imported(group):
            return f"check a target whose calls reach {name}"
        code = group.frame.code if group.frame else ""
        assigned = re.match(r"([\w.]+)\s*=\s*torch\.compile\(\s*([\w.]+)", code)
        if assigned and assigned[1] != assigned[2]:
            return f"use {assigned[1]} where you use {assigned[2]} now"
        if group.first.what == "module":
            return f"compile the {name} in place, with its method compile()"
        return super().advice(group)

    def read(self, source: Source) -> Iterator[Match]:
        for site in compiled.of(source).sites:
            statement = source.parents.get(site.node)
            if not isinstance(statement, ast.Expr) or site.subject is None:
                continue
            if source.is_inside(statement, ast.With, ast.Try):
                continue  # a test may expect that the call raises
            own = changes.code(source, site.node)
            new = _rebound(site.node, site.subject, own, source)
            title = "use what torch.compile returns"
            subject = source.brief(site.subject)
            yield Match(
                site.node,
                event=WrapperEvent(name=subject, what="one"),
                words={"name": subject},
                remedy=changes.edit(title, source, {site.node: new}) if new else None,
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
    source = changes.source_of(site.file)
    if function is None or site.file != function.file or source is None:
        return False
    return (function.line, site.line) in _decorators(source)


@functools.lru_cache(maxsize=8)
def _decorators(source: Source) -> frozenset[tuple[int, int]]:
    """The first line of each decorated function that no function contains.

    With it, each line of a decorator.
    """
    return frozenset(
        (node.decorator_list[0].lineno, line)
        for node in source.nodes
        if isinstance(node, Definition) and node.decorator_list
        if not source.is_inside(node, ast.FunctionDef, ast.AsyncFunctionDef)
        for each in node.decorator_list
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    )


class OtherMethod(NoOp[BypassGroup]):
    """A method other than forward is called on a compiled module.

    ## Why
    torch.compile(module) compiles forward only; other methods run uncompiled, and call
    the original's forward.

    ## Bad
        compiled = torch.compile(model)
        compiled.encode(x)

    ## Good
        model.encode = torch.compile(model.encode)
        model.encode(x)

    ## Fix safety
    The compiled method gives the same values up to rounding. After model.compile(), in
    place, a method that calls forward, as generate() does, calls the compiled one.
    """

    code = "NC802"
    source_text = "`{at.expression}` on the compiled module would run uncompiled"
    message_text = (
        "{at.first.model}.{at.first.method}() runs uncompiled on the compiled module,"
        " {at.times}"
    )
    cause_text = (
        "torch.compile(module) compiles forward only; {at.first.method} is the"
        " original's own method"
    )
    shown_by = ("NC802",)
    advice_text = (
        "if {at.first.method}() calls forward, compile in place with model.compile();"
        " otherwise compile the method itself"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[BypassGroup]:
        return _bypasses(facts, of_original=False)

    def read(self, source: Source) -> Iterator[Match]:
        file = compiled.of(source)
        for node in source.of(ast.Call) if file.sites else ():
            if not isinstance(node.func, ast.Attribute):
                continue
            site = file.of(node.func.value)
            if site is not None and _is_other(node.func.attr, site, file):
                event = BypassEvent(method=node.func.attr)
                yield Match(
                    node, event=event, remedy=_compiled_method(node.func, site, file)
                )


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


def _compiled_method(
    called: ast.Attribute, site: Compiled, file: Compilation
) -> Remedy | None:
    """Compiles the method besides forward, or the module in place if it calls forward.

    None where the file does not show the method.
    """
    source, holder = file.source, file.name(site)
    cls, subject = _class(site, file), site.subject
    method = cls.methods.get(called.attr) if cls else None
    statement = source.parents.get(site.node)
    if method is None or holder is None or subject is None:
        return None
    if not isinstance(statement, ast.Assign) or not isinstance(site.node, ast.Call):
        return None
    name, options = (
        source.text_of(holder),
        changes.arguments(source, site.node, first=1),
    )
    model = changes.code(source, subject)
    if not _calls("self", method.node, source):
        after = f", {options}" if options else ""
        own = f"{name}.{called.attr}"
        first = f"{name} = {model}"  # what is never called need not be compiled
        if model == name or _calls(name, source.tree, source):
            first = changes.code(source, statement)
        title = f"compile {own}, the method that is called"
        line = f"{own} = torch.compile({own}{after})"
        new: dict[changes.Node, str] = {statement: first}
        return changes.edit(title, source, new, below=line)
    title = f"compile in place: {called.attr}() then calls the compiled forward"
    if model == name:
        return changes.edit(title, source, {statement: f"{name}.compile({options})"})
    new = {statement: f"{name} = {model}"}
    return changes.edit(title, source, new, below=f"{name}.compile({options})")


def _calls(name: str, node: ast.AST, source: Source) -> bool:
    """Whether code calls what has this name."""
    calls = (each.func for each in walk(node) if isinstance(each, ast.Call))
    return any(source.dotted(called) == name for called in calls)


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
    The values are the same up to rounding. Compiling in place, model.compile(), keeps
    the calls as they are.
    """

    code = "NC803"
    cause_text = (
        "`{at.expression}` calls the module that was given to torch.compile, not what"
        " it returned"
    )
    advice_text = "call what torch.compile returned at `{at.expression}`"
    shown_by = ("NC803", "NC801")
    message_text = (
        "the uncompiled {at.first.model} is called {at.times}, although a compiled one"
        " exists"
    )
    source_text = (
        "`{at.expression}` runs uncompiled: nothing uses {result}, the compiled one"
    )

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[BypassGroup]:
        groups = _bypasses(facts, of_original=True)
        return (group for group in groups if not is_prefill(group))

    def severity(self, group: BypassGroup) -> Severity:
        used = any(wrapper.calls for wrapper in self._compiled(group))
        return "medium" if used else "high"

    def _compiled(self, group: BypassGroup) -> list[WrapperEvent]:
        """The compiled ones of the modules that are called."""
        modules = {event.module for event in group.events}
        return [w for w in group.facts.wrappers if w.module in modules]

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
            if calls := _later_calls(subject, site, file):
                own = changes.code(source, result)
                new: dict[changes.Node, str] = {call.func: own for call in calls}
                title = f"call {own}, the compiled one"
                edit = changes.edit(title, source, new)
                sure = source.is_sure(site.node)  # else it may not exist
                words = {"result": own}
                yield Match(calls[0], words=words, remedy=edit if sure else None)


def _later_calls(
    subject: ast.Name | ast.Attribute, site: Compiled, file: Compilation
) -> list[ast.Call]:
    """The calls of the original after compiling, or in another method."""
    is_attribute = isinstance(subject, ast.Attribute)
    scope = file.bindings.scope(site.node)
    if is_attribute:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = file.bindings.scope(scope)
    name = file.source.dotted(subject)
    return [
        node
        for node in walk(scope)
        if isinstance(node, ast.Call) and file.source.dotted(node.func) == name
        if node.lineno > site.node.lineno
        or (is_attribute and file.bindings.scope(node) is not scope)
    ]


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
    The values are the same up to rounding. A stance may also be set back to "default"
    before the call.
    """

    code = "NC804"
    reference = torch_pages.STANCES
    message_text = "{at.first.name} is not compiled: {switch} switches compilation off"
    cause_text = "{switch} makes torch.compile do nothing"
    advice_text = "{remove} {switch}"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[WrapperGroup]:
        off = (e for e in facts.of(WrapperEvent) if e.off or e.eager_stance)
        yield from by_site(off, facts)

    def words(self, group: WrapperGroup) -> dict[str, object]:
        switch = self._switch(group)
        return {"switch": switch, "remove": "unset" if "=" in switch else "remove"}

    def _switch(self, group: WrapperGroup) -> str:
        if not group.first.off:
            return 'the stance "force_eager"'
        variables = group.facts.observation.environment.get("variables") or {}
        for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
            if variables.get(name, "0") not in {"", "0"}:
                return f"{name}={variables[name]}"
        return "torch._dynamo.config.disable"

    def edit(self, group: WrapperGroup) -> Remedy | None:
        """Takes out the only statement that sets the stance or the setting."""
        if "=" in self._switch(group):
            return None
        found = [
            (source, node)
            for source in filter(None, map(changes.source_of, user_files(group)))
            for node in source.nodes
            if _switches_off(node, source, stance=not group.first.off)
        ]
        if len(found) != 1:
            return None
        source, node = found[0]
        assert isinstance(node, ast.Expr | ast.Assign)
        return changes.removed(f"remove `{source.brief(node)}`", source, node)


def _switches_off(node: ast.AST, source: Source, *, stance: bool) -> bool:
    if isinstance(node, ast.Assign):
        name = source.dotted(node.targets[0])
        return not stance and name == "torch._dynamo.config.disable"
    value = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(value, ast.Call) or not value.args:
        return False
    sets = source.dotted(value.func) == "torch.compiler.set_stance"
    return stance and sets and compiled.literal(value.args[0]) == "force_eager"


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
    See the rule of the break that the finding names. A function without tensors is best
    not compiled at all.
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
        calls = plural(sum(e.calls or 0 for e in group.events), "time")
        return f"{group.first.name} is called {calls}, but no compiled code ever ran"

    def cause(self, group: WrapperGroup) -> str:
        breaks, name = self._breaks(group), group.first.name
        if self._is_torch_module(group):
            return (
                f"{name}.forward is torch's own code, which compiling in place does not"
                " trace"
            )
        if not breaks:
            return f"no tensor operation of {name} was captured"
        if _are_disabled(breaks):
            return "everything in it is inside functions marked torch.compiler.disable"
        if not any(isinstance(b, BreakEvent) and b.skips for b in breaks):
            return f"its graph breaks leave nothing to compile: {breaks[0].reason.type}"
        return f"every frame was skipped, first because of: {breaks[0].reason.type}"

    def symptom(self, group: WrapperGroup) -> Symptom | None:
        breaks = self._breaks(group)
        if self._is_torch_module(group) or _are_disabled(breaks):
            return None
        return Symptom(breaks[0].reason.type)

    def edit(self, group: WrapperGroup) -> Remedy | None:
        """`model = torch.compile(model)` instead of `model.compile()`."""
        frame = group.frame
        source = changes.source_of(frame.file) if frame else None
        if frame is None or source is None or not self._is_torch_module(group):
            return None
        for call in source.of(ast.Call):
            called = call.func
            if call.lineno != frame.line or not isinstance(called, ast.Attribute):
                continue
            model = changes.code(source, called.value)
            given = ", ".join(filter(None, [model, changes.arguments(source, call)]))
            new = _rebound(call, called.value, f"torch.compile({given})", source)
            if called.attr == "compile" and new:
                title = f"`{model} = torch.compile({model})`: this compiles it"
                return changes.edit(title, source, {call: new})
        return None

    def advice(self, group: WrapperGroup) -> str:
        breaks, name = self._breaks(group), group.first.name
        if self._is_torch_module(group):
            return f"use model = torch.compile(model) for a {name}, not model.compile()"
        if not breaks:
            return f"compile the function that computes with tensors, not {name}"
        place = place_of(breaks[0].frames).frame
        where = f" at line {place.line} (`{place.expression}`)" if place else ""
        if _are_disabled(breaks):
            return f"do not compile {name}, or remove torch.compiler.disable{where}"
        failed = not isinstance(breaks[0], BreakEvent) or not breaks[0].logged
        hides = in_force(group, Setting("dynamo.suppress_errors", True))
        if failed and hides and not breaks[0].reason.type.startswith("Attempt"):
            return f"fix the compile error{where} that suppress_errors hides"
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


def _are_disabled(breaks: Iterable[BreakEvent | FailureEvent]) -> bool:
    return all("disable" in each.reason.type for each in breaks)


class NoCompileCall(NoOp[AnyGroup]):
    """The program never calls torch.compile.

    ## Why
    Nothing is compiled, so there is nothing to check.

    ## Bad
        model(x)

    ## Good
        model = torch.compile(model)      # or model.compile()
        model(x)

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "NC806"
    message_text = "the program never calls torch.compile: everything runs eagerly"
    cause_text = "no call of torch.compile was made, by the program or what it imports"
    advice_text = "compile the model: model.compile()"

    def cause(self, group: AnyGroup) -> str:
        if factories := group.facts.observation.factories:
            return f"run as a script, it does not call {', '.join(factories)}"
        return super().cause(group)

    def advice(self, group: AnyGroup) -> str:
        if command := group.facts.factory_command:
            return f"name the factory: {command}"
        if group.facts.observation.as_written:
            return "leave out --as-written: the check then compiles the target"
        return self.advice_text

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[AnyGroup]:
        live = facts.calls is not None
        if live and facts.complete and not facts.of(WrapperEvent):
            yield AnyGroup((Event(),), Place(None, None, None), facts)
