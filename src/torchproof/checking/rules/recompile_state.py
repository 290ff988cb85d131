"""RC21x: recompiles because Python state changed, rather than an input tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import in_force, user_files
from torchproof.checking.rules.recompile_groups import RecompileGroup
from torchproof.checking.rules.recompiles import Recompile, Values, per_value
from torchproof.checking.rules.rule import Match
from torchproof.checking.rules.state_changes import change_of
from torchproof.checking.static import compiled
from torchproof.checking.static.attribute_facts import (
    ConstantUse,
    constant_use,
    first_value,
)
from torchproof.checking.static.compiled import Compilation
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import Guard, Remedy, Setting

_COUNTERS = ast.Add | ast.Sub | ast.Mult
# What torch says of an int attribute, if the object is a module.
_HINT = "HINT: torch.compile considers integer attributes"
_DYNAMIC_INT = Setting("dynamo.allow_unspec_int_on_nn_module", True)
_SOURCES = "torch.compiler.config.dynamic_sources"
# A global int, or one in an object or container that is global.
_GLOBAL_INT = re.compile(r"(G\['\w+'\](?:\.\w+|\['\w+'\]|\[\d+\])*) == -?\d+(?![\w.])")
_FLOAT = re.compile(r"-?\d+[.e]")
_OBJECT = re.compile(r"[\[{(]|<(?!\w+\.\w+: )|(?:set|frozenset|dict|list|tuple)\(")
_FLAG = re.compile(r"True|False|None|<\w+\.\w+: .*>|torch\.\w+")
_TEXT = re.compile(r"""['"].*\s""")
_NUMBERS = frozenset({"value", "attribute", "global"})
_OF_OBJECT = re.compile(r"\w+(?:\[\d+\])?\.\w")
_TOKENIZES = re.compile(
    r"\.(?:split|encode|tokenize)\(|tokeni[sz]er|\bre\.(?:findall|split|sub)\("
)
_WARM_UP = "warm up with each value of `{guard.source}`: each graph is kept"
_FLOATS = "leave it: the second graph takes every float as `{guard.source}`"

_ENCODE = (
    "turn `{guard.source}` into a tensor outside the compiled function, before the call"
)


class StateChange(Recompile):
    """Base class of the rules for a Python value that is a constant of the graph."""

    advice_text = (
        "compute what depends on `{guard.source}` before the compiled call, and pass it"
        " as a tensor"
    )
    cause_text = "`{guard.source}` was compiled in as the constant {guard.expected}"
    last_rewrites: ClassVar[tuple[str, ...]] = ("state.outside",)

    def values_of(self, group: RecompileGroup) -> Values:
        """Those of Python: torch makes only a number an input, and not each one."""
        guard, change = group.guard, change_of(group)
        every = [value for each in group.guards for value in each.values]
        if _selects_module(group):
            return Values.FEW
        if guard.cause in _NUMBERS and not per_value(guard):
            is_int = not _FLOAT.match(guard.expected or "")
            is_static = _HINT in guard.text or (guard.cause == "global" and is_int)
            stays = is_static or group.stays_constant
            return Values.ENDLESS if stays else Values.FEW
        if all(map(_FLAG.fullmatch, every)) or (change and change.is_bounded):
            return Values.FEW
        is_text = any(_TEXT.match(each) for each in every)
        return Values.ENDLESS if change or is_text else Values.UNKNOWN

    def why(self, group: RecompileGroup) -> str:
        text, change = super().why(group), change_of(group)
        is_local = group.guard.cause == "value" and group.guard.other != "closure"
        if change is None or (change.inside and is_local):
            return text  # a function that assigns to its parameter changes no argument
        return f"{text}; {change.text(group)} changes it"

    def advice(self, group: RecompileGroup) -> str:
        guard, change = group.guard, change_of(group)
        is_endless = self.values_of(group) is Values.ENDLESS
        is_few = _selects_module(group) or (per_value(guard) and _is_plain(guard))
        if is_few and not is_endless:
            return self.say(_WARM_UP, group)
        if change and change.inside and not change.is_read:
            return f"move {change.text(group)} out of the compiled function"
        if not _is_plain(guard):
            text = "let `{guard.source}` be the same in every call of {at.compiled}"
            return self.say(text, group)
        if _FLOAT.match(guard.expected or "") and not group.stays_constant:
            return self.say(_FLOATS, group)
        if _OF_OBJECT.match(guard.source) and (use := _needed(group)):
            text = f"`{use.code[: group.width]}` at line {use.line} needs a number"
            return f"{text}: compute it outside the compiled function and pass a tensor"
        return self.say(self.advice_text, group)


def _is_plain(guard: Guard) -> bool:
    """Whether no value that was seen is a container or another object.

    Text, numbers, members of an enum and dtypes have a few values to warm up with.
    """
    return not any(_OBJECT.match(each) for each in guard.values)


def _selects_module(group: RecompileGroup) -> bool:
    """Whether a number only says which modules of a list run: it has as many values."""
    use = None if per_value(group.guard) else _needed(group)
    name = use.indexed.rpartition(".")[2] if use else ""
    listed = first_value(name, user_files(group)) or ""
    return listed.startswith(("nn.ModuleList(", "torch.nn.ModuleList("))


def _needed(group: RecompileGroup) -> ConstantUse | None:
    """A use of the number that makes each value a constant of the graph."""
    source, files = group.guard.source, list(user_files(group))
    own = group.frame if group.place.owner == "user" else None
    is_own = source.rpartition(".")[0] == "self" and own is not None
    use = constant_use(source, files, line=own.line if own and is_own else None)
    if use is None or not use.indexed:
        return use
    listed = first_value(use.indexed.rpartition(".")[2], files) or "torch."
    return None if listed.startswith("torch.") and "Module" not in listed else use


class ScalarArgument(StateChange):
    """A Python number, bool or string argument changes between calls.

    ## Why
    The first value becomes a constant of the graph. A changed int or float becomes
    dynamic in the second compilation. Every bool and every string gets its own graph.

    ## Bad
        shift(x, 5); shift(x, 7)

    ## Good
        shift(x, torch.tensor(5)); shift(x, torch.tensor(7))

    ## Fix safety
    The values are the same. A tensor cannot decide a Python branch, and costs a copy to
    the device.
    """

    code = "RC210"
    settings = (Setting("compile.dynamic", True),)
    last_rewrites = ("outside.text", "state.outside")
    causes = ("value",)
    changed_text = "`{guard.source}` changed ({seen})"

    def setting(self, group: RecompileGroup) -> Setting | None:
        """Numbers become dynamic, as sizes do, unless dynamic=False forbids it."""
        forbidden = group.compile_arguments.get("dynamic") == "False"
        return self.settings[0] if forbidden and not per_value(group.guard) else None

    def advice(self, group: RecompileGroup) -> str:
        guard = group.guard
        is_number = _OF_OBJECT.match(guard.source) and not per_value(guard)
        if is_number or not _is_plain(guard):
            return super().advice(group)
        if per_value(guard) and group.frame and _TOKENIZES.search(group.frame.code):
            return (
                f"tokenize `{guard.source}` outside, before the compiled call, and pass"
                " the ids in as a tensor"
            )
        if any(_TEXT.match(value) for each in group.guards for value in each.values):
            return self.say(_ENCODE, group)
        is_endless = self.values_of(group) is Values.ENDLESS
        if per_value(guard) and not is_endless:
            return self.say(_WARM_UP, group)
        if is_endless or group.stays_constant:
            return self.say(self.advice_text, group)
        text = (
            "leave it: the second graph takes every `{guard.source}` but the ints 0/1"
        )
        return self.say(f"{text}; warm up with two numbers", group)


class TypeChange(Recompile):
    """An argument is None, or of another type or class, on some calls.

    ## Why
    Dynamo evaluates `is None` and the type of an argument while tracing. A class that
    is created again in each call is another class each time.

    ## Bad
        attend(x, None); attend(x, mask)

    ## Good
        attend(x, no_mask); attend(x, mask)      # always a tensor

    ## Fix safety
    The default tensor must be neutral: zeros if it is added, ones if it is multiplied.
    """

    code = "RC211"
    causes = ("type",)
    changed_text = "`{guard.source}` is of another type in some calls ({seen})"
    cause_text = "the type of `{guard.source}` is part of what was compiled"

    def values_of(self, group: RecompileGroup) -> Values:
        return Values.FEW if "None" in group.guard.values else Values.UNKNOWN

    def advice(self, group: RecompileGroup) -> str:
        guard, expected = group.guard, [each.expected for each in group.guards]
        if len(expected) > 1 and len(set(expected)) == 1:
            return f"create the class {guard.expected} once, not again for each call"
        if group.first.path is None and "None" in guard.values:
            text = (
                "set `{guard.source}` before the first compiled call, where it is None"
            )
        elif "None" in guard.values:
            text = (
                "warm up with one call where `{guard.source}` is None and one where it"
                " is not: each graph is kept"
            )
        else:
            text = "warm up with each type of `{guard.source}`: each graph is kept"
        return self.say(text, group)


class ContainerShape(StateChange):
    """A list, tuple or dict has another length or other keys.

    ## Why
    Dynamo unrolls containers while tracing, so their length and keys become part of the
    graph.

    ## Bad
        self.past.append(h)          # one longer every call

    ## Good
        self.past[:, position] = h   # a preallocated buffer, written with index_copy_

    ## Fix safety
    A buffer has a maximum length: mask the part that is not filled yet.
    """

    code = "RC212"
    causes = ("length", "keys")
    changed_text = "the {what} of `{guard.source}` changed ({seen})"
    cause_text = "tracing unrolls `{guard.source}`, so its {what} cannot change"
    nodes = (ast.For, ast.ListComp, ast.GeneratorExp, ast.Call)
    shown_by = ("RC212", "RC213", "RC214", "RC290", "RC215", "RC299")
    calls = 3
    joins = ("torch.stack", "torch.cat", "torch.concat", "torch.vstack", "torch.hstack")

    def words(self, group: RecompileGroup) -> dict[str, object]:
        what = "length" if group.guard.cause == "length" else "keys"
        return {**super().words(group), "what": what}

    def advice(self, group: RecompileGroup) -> str:
        change = change_of(group)
        if change and change.inside and not change.is_read:
            return (
                f"return what {change.text(group)} stores, and store it after the call"
            )
        if group.first.path is not None and len(group.first.path) == 1:
            text = "pass the same arguments to {at.compiled} in every call"
        elif group.guard.cause == "keys":
            text = "give `{guard.source}` the same keys in the same order in every call"
        elif change:
            text = (
                "preallocate a tensor of the final length instead of `{guard.source}`"
            )
        elif group.first.path is None:
            text = "fill and empty `{guard.source}` outside of the compiled function"
        else:
            text = "pass one tensor instead of `{guard.source}`, as with torch.stack"
        return self.say(text, group)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        yield from self._growing(node, at)
        yield from self._arguments(node, at)

    def _growing(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(called, ast.Attribute) or called.attr != "append":
            return
        name = at.dotted(called.value) or ""
        if _is_kept_list(name, at) and not _is_emptied(name, at):
            yield Match(
                node,
                cause=f"compiled code holds for one length of `{name}`, and each call"
                " makes it longer",
                advice="return the value and append it outside the compiled function",
            )

    def _arguments(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        if at.function.node.name != "forward":
            return
        for each in self._used(node, at):
            is_list = isinstance(each, ast.Name) and each.id in _list_parameters(at)
            if is_list and at.text(each) not in at.reported:
                at.reported.add(at.text(each))
                yield Match(
                    each,
                    f"{at.function.name} would recompile for each length of the list"
                    f" `{at.text(each)}`",
                    "compiled code holds for one length of a Python list: a guard"
                    " counts its items",
                    "build one tensor before the compiled call and pass it, as with"
                    " torch.stack",
                    severity="low",
                )

    def _used(self, node: ast.AST, at: Flow) -> list[ast.expr]:
        if isinstance(node, ast.For):
            return [node.iter]
        if isinstance(node, ast.Call):
            joined = at.dotted(node.func) in self.joins and bool(node.args)
            return [node.args[0]] if joined else []
        assert isinstance(node, ast.ListComp | ast.GeneratorExp)
        return [each.iter for each in node.generators]


def _list_parameters(at: Flow) -> set[str]:
    """The parameters that are annotated as lists of tensors."""
    parameters = set()
    for parameter in at.function.parameters:
        if parameter.annotation is None:
            continue
        text = ast.unparse(parameter.annotation).replace(" ", "")
        text = text.removesuffix("|None").removeprefix("Optional[").lower()
        if text.startswith(("list[", "sequence[", "typing.list[")) and "tensor" in text:
            parameters.add(parameter.arg)
    return parameters


def _is_kept_list(name: str, at: Flow) -> bool:
    if name.startswith("self.") and name.count(".") == 1:
        owner = at.function.owner
        values = at.program.assigned(owner, name[5:]) if owner else []
        return bool(values) and all(
            isinstance(v, ast.List) and not v.elts for v in values
        )
    if not isinstance(at.source.globals.get(name), ast.List):
        return False
    local = {n.id for n in walk(at.function.node) if _is_store(n)}  # type: ignore[attr-defined]
    return name not in local


def _is_store(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_emptied(name: str, at: Flow) -> bool:
    """Whether the same function also resets or shortens the list."""
    for node in walk(at.function.node):
        if isinstance(node, ast.Assign) and any(
            at.dotted(target) == name for target in node.targets
        ):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            emptied = node.func.attr in ("clear", "pop", "remove")
            if emptied and at.dotted(node.func.value) == name:
                return True
    return False


class AttributeChange(StateChange):
    """An attribute of a module or object changes between calls.

    ## Why
    Dynamo reads attributes while tracing. An int attribute of an nn.Module stays a
    constant; it never becomes dynamic.

    ## Bad
        self.calls += 1

    ## Good
        torch._dynamo.config.allow_unspec_int_on_nn_module = True
        self.calls += 1

    ## Fix safety
    The values are the same. The setting is of all modules, and each value that decides
    a Python branch or counts a loop still gets its own graph.
    """

    code = "RC213"
    settings = (_DYNAMIC_INT,)
    causes = ("attribute",)
    changed_text = "the attribute `{guard.source}` changed ({seen})"
    nodes = (ast.AugAssign, ast.Assign)
    shown_by = ("RC213", "RC290", "RC215", "RC299")
    calls = 3

    def setting(self, group: RecompileGroup) -> Setting | None:
        return _of_module(group)

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.AugAssign | ast.Assign)
        name = _counted(node, at)
        if name is None or not _is_integer(name, at):
            return
        text = f"keep `self.{name}` in a tensor, or change it outside of compiled code"
        files, line = [str(at.source.path)], node.lineno
        if _is_module(at) and not constant_use(f"self.{name}", files, line=line):
            text = Remedy("setting", settings=(_DYNAMIC_INT,)).text
        yield Match(
            node,
            cause=f"compiled code holds for one value of `self.{name}`, and each call"
            " changes it",
            advice=text,
        )


def _of_module(group: RecompileGroup) -> Setting | None:
    """That of an int in a module, where the code does not need a constant."""
    helps = _HINT in group.guard.text and not _needed(group)
    return _DYNAMIC_INT if helps and not in_force(group, _DYNAMIC_INT) else None


def _is_module(at: Flow) -> bool:
    owner = at.function.owner
    return owner is not None and at.program.is_module(owner)


def _counted(node: ast.AugAssign | ast.Assign, at: Flow) -> str | None:
    """The attribute of `self` that a statement changes by an integer."""
    if isinstance(node, ast.AugAssign):
        target, step, operation = node.target, node.value, node.op
    elif len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target, step, operation = node.targets[0], node.value.right, node.value.op  # type: ignore[assignment]
        if at.dotted(node.value.left) != at.dotted(target):
            return None
    else:
        return None
    whole = isinstance(step, ast.Constant) and type(step.value) is int
    counts = whole and isinstance(operation, _COUNTERS)
    return at.source.own(target) if counts else None


def _is_integer(name: str, at: Flow) -> bool:
    """Whether the class assigns only integers to the attribute."""
    owner = at.function.owner
    values = at.program.assigned(owner, name) if owner else []
    first = [v for v in values if not isinstance(v, ast.BinOp)]
    return bool(first) and all(
        isinstance(v, ast.Constant) and type(v.value) is int for v in first
    )


class GlobalValue(StateChange):
    """A global variable changes between calls.

    ## Why
    Dynamo reads globals while tracing and makes their values constants of the graph.

    ## Bad
        def f(x): return x * SCALE

    ## Good
        def f(x, scale): return x * scale

    ## Fix safety
    The values are the same.
    """

    code = "RC214"
    causes = ("global",)
    changed_text = "the global `{guard.source}` changed ({seen})"
    nodes = (ast.AugAssign,)
    shown_by = ("RC214", "RC290", "RC215", "RC299")
    calls = 3

    def setting(self, group: RecompileGroup) -> Setting | None:
        """Of an int: torch makes it an input only where its name is listed.

        One assignment lists them all, as a second one would replace the first.
        """
        if _HINT in group.guard.text:
            return _of_module(group)
        known = str(group.facts.observation.settings.get(_SOURCES) or "").split(",")
        if (_listed(group) or known[0]) in known:
            return None
        groups = filter(self.matches, self.groups(group.facts))
        names = dict.fromkeys([*known, *map(_listed, groups)])
        return Setting("compiler.dynamic_sources", ",".join(filter(None, names)))

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.AugAssign)
        target, step = node.target, node.value
        if not isinstance(target, ast.Name) or not isinstance(step, ast.Constant):
            return
        shared = [n for n in walk(at.function.node) if isinstance(n, ast.Global)]
        is_global = any(target.id in each.names for each in shared)
        if type(step.value) is int and target.id in at.source.globals and is_global:
            yield Match(
                node,
                cause="before torch 2.14 compiled code holds for one value of"
                f" `{target.id}`, and each call changes it",
                advice="count outside the compiled function, or in a tensor",
            )


def _listed(group: RecompileGroup) -> str | None:
    """The name by which torch can make a global int an input."""
    found = _GLOBAL_INT.match(group.guard.text)
    is_module = _HINT in group.guard.text
    return found[1] if found and not is_module and not _needed(group) else None


class NewObject(Recompile):
    """A function, closure or other object is a new one in each call.

    ## Why
    Dynamo guards on the identity of functions and of objects whose contents it cannot
    inspect. An enum's values are objects too.

    ## Bad
        for x in data: run(x, lambda y: y + 1)

    ## Good
        def increment(y): return y + 1
        for x in data: run(x, increment)

    ## Fix safety
    The values are the same if the function does not depend on where it is created.
    """

    code = "RC215"
    last_rewrites = ("state.outside",)
    causes = ("identity",)
    changed_text = "`{guard.source}` is another {what} than before"
    cause_text = "the compiled code holds for one particular {what} as `{guard.source}`"
    advice_text = (
        "pass the same `{guard.source}` in every call, or warm up with each: each graph"
        " is kept"
    )

    def words(self, group: RecompileGroup) -> dict[str, object]:
        return {**super().words(group), "what": group.guard.other or "object"}


class GlobalState(Recompile):
    """Gradient mode, autocast or other global state differs between calls.

    ## Why
    Torch's global state determines the graph, so each state gets its own.

    ## Bad
        model(x)
        with torch.no_grad(): model(x)

    ## Good
        # the same program, with one warm-up call in each mode

    ## Fix safety
    Nothing changes: both graphs stay in the cache.
    """

    code = "RC216"
    causes = ("global_state",)
    values = Values.FEW
    changed_text = "the global state `{guard.source}` differs between calls"
    cause_text = "torch's `{guard.source}` is part of what was compiled"
    advice_text = (
        "warm up with one call in each state of `{guard.source}`: each graph is kept"
    )


class TrainingFlag(Recompile):
    """module.train() and module.eval() alternate between calls.

    ## Why
    Dropout and batch norm behave differently, so each mode gets its own graph.

    ## Bad
        for step in range(n): model.train(step % 2 == 0); model(x)

    ## Good
        model.train(); model(x)      # warm up once in each mode
        model.eval(); model(x)

    ## Fix safety
    Expected: there are two graphs, and both stay in the cache.
    """

    code = "RC217"
    reference = torch_pages.MODULES
    causes = ("training",)
    values = Values.FEW
    changed_text = "`{guard.source}` flips between train() and eval()"
    cause_text = "`{guard.source}` decides what dropout and batch norm do"
    advice_text = (
        "expected once per mode: warm up with one call in train() and one in eval()"
    )


class LearningRate(Recompile):
    """A learning rate that is a Python float changes.

    ## Why
    The settings in an optimizer's param_groups are Python values, and a scheduler
    changes them. A float costs one recompile; then it is an input of the graph.

    ## Bad
        torch.optim.SGD(parameters, lr=0.1)

    ## Good
        torch.optim.SGD(parameters, lr=torch.tensor(0.1))

    ## Fix safety
    The steps are the same. Some schedulers convert a tensor back into a float. On a
    GPU, optimizers that have the option need capturable=True.
    """

    code = "RC218"
    reference = torch_pages.RATES
    causes = ("learning_rate",)
    values = Values.FEW
    changed_text = "the learning rate `{guard.source}` is a changing float ({seen})"
    cause_text = "a float is compiled in as a constant; a tensor is an input"
    advice_text = (
        "create the optimizer with a tensor, lr=torch.tensor(...), on a GPU also with"
        " capturable=True if it has that option"
    )
    certain = False
    source_severity = "low"
    calls = 3
    source_text = (
        "the optimizer step would compile twice: its learning rate is a Python float"
        " that changes"
    )

    def words(self, group: RecompileGroup) -> dict[str, object]:
        """Without `self`: that is the optimizer, which the program calls otherwise."""
        source = group.guard.source.removeprefix("self.")
        return {**super().words(group), "guard": replace(group.guard, source=source)}

    def read(self, source: Source) -> Iterator[Match]:
        if "optim" not in source.text or "lr" not in source.text:
            return
        file = compiled.of(source)
        if not file.sites:
            return
        for site in file.sites:
            for node, optimizer in _steps(site.subject or site.node, file):
                if _has_float_rate(optimizer, file) and _is_scheduled(optimizer, file):
                    yield Match(
                        node,
                        cause="a float is compiled in as a constant; when the scheduler"
                        " changes it, the step is compiled again, with the rate as an"
                        " input",
                        advice=self.advice_text,
                    )


def _steps(subject: ast.expr, file: Compilation) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The calls of `optimizer.step` in the compiled code, with the optimizer."""
    if isinstance(subject, ast.Attribute) and subject.attr == "step":
        yield subject, subject.value
        return
    function = file.bindings.meaning(subject)
    if not isinstance(function, Definition):
        function = next((s.function for s in file.sites if s.node is subject), None)
    for node in walk(function) if function is not None else ():
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "step":
            assert isinstance(node, ast.Call)
            yield node, called.value


def _has_float_rate(optimizer: ast.expr, file: Compilation) -> bool:
    constructor = file.bindings.meaning(optimizer)
    if not isinstance(constructor, ast.Call):
        return False
    if not (file.source.dotted(constructor.func) or "").startswith("torch.optim."):
        return False
    for keyword in constructor.keywords:
        if keyword.arg == "lr":
            return isinstance(keyword.value, ast.Constant)
    return False


def _is_scheduled(optimizer: ast.expr, file: Compilation) -> bool:
    """Whether a scheduler or an assignment changes the learning rate."""
    constructor = file.bindings.meaning(optimizer)
    for node in file.source.nodes:
        if isinstance(node, ast.Call) and node.args:
            scheduler = ".lr_scheduler." in (file.source.dotted(node.func) or "")
            if scheduler and file.bindings.meaning(node.args[0]) is constructor:
                return True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and compiled.literal(target.slice) == "lr":
            return True
    return False
