"""RC21x: recompiles because Python state changed, rather than an input tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.advice import (
    Piece,
    as_tensor,
    assembled,
    has_setting,
    is_float,
    setting,
    user_files,
)
from torchproof.checking.rules.recompile_groups import RecompileGroup
from torchproof.checking.rules.recompiles import Recompile, values_seen
from torchproof.checking.rules.rule import Match, shorten
from torchproof.checking.static import compiled
from torchproof.checking.static.attribute_facts import AttributeFacts, attribute_facts
from torchproof.checking.static.compiled import Compilation
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.source import Definition, Source, walk
from torchproof.records import BreakEvent, Guard, Setting, Severity

_COUNTERS = ast.Add | ast.Sub | ast.Mult
# What torch says of an int attribute, if the object is a module.
_HINT = "HINT: torch.compile considers integer attributes"
_IN_MODULES = "torch._dynamo.config.allow_unspec_int_on_nn_module"
_SETTLED = 3  # recompiles of a number that becomes dynamic: the sizes 0 and 1 are apart
_DYNAMIC_INT = Setting("dynamo.allow_unspec_int_on_nn_module", True)


class ScalarArgument(Recompile):
    """A Python number, bool or string argument changes between calls.

    ## Why
    The first value becomes a constant of the graph. A changed int or float becomes
    dynamic in the second compilation. Every bool and every string gets its own graph.

    ## Bad
        shift(x, 5); shift(x, 7)

    ## Good
        shift(x, torch.tensor(5)); shift(x, torch.tensor(7))

    ## Fix safety
    The values are the same. A tensor cannot decide a Python branch.
    """

    code = "RC210"
    settings = (Setting("compile.dynamic", True),)
    causes = ("value",)
    changed_text = "the Python value `{guard.source}` changed ({seen})"
    cause_text = "`{guard.source}` was compiled in as the constant {guard.expected}"

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        if guard.other == "closure":
            return (
                f"`{guard.source}` belongs to a closure that is created again each"
                " time: create the function once, outside the loop, and pass"
                f" `{guard.source}` as an argument (a tensor, if it is a number)"
            )
        of_object = re.match(r"\w+(?:\[\d+\])?\.\w", guard.source)
        if of_object and not self.per_value(guard):
            return _tensor_in_attribute(guard, group)
        compiled_in = {each.expected for each in group.guards}
        if self.per_value(guard) or len(compiled_in) > 1:
            return (
                f"each value of `{guard.source}` gets its own graph: keep it fixed,"
                " compile a separate function for each constant, or warm up with every"
                " value before serving"
            )
        return (
            f"to avoid the recompile, pass `{guard.source}` as a tensor argument:"
            f" torch.tensor({guard.source}); a Python number costs one recompile and is"
            " dynamic from then on"
        )


class TypeChange(Recompile):
    """An argument is None, or has another type, on some calls.

    ## Why
    Dynamo evaluates `is None` and the type of an argument while tracing.

    ## Bad
        attend(x, None); attend(x, mask)

    ## Good
        attend(x, no_mask); attend(x, mask)      # always a tensor

    ## Fix safety
    The default tensor must be neutral: zeros if it is added, ones if it is multiplied.
    """

    code = "RC211"
    causes = ("type",)
    changed_text = "`{guard.source}` is of another type on some calls ({seen})"
    cause_text = "the type of `{guard.source}` is part of what was compiled"

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        if group.first.path is None and "." in guard.source:  # state, not an argument
            return (
                f"set `{guard.source}` before the first call (to a preallocated buffer,"
                " if it holds a tensor) instead of None; or, if the first call sets it,"
                " call the model once before you compile it"
            )
        return (
            f"always pass the same type for `{guard.source}` (always a list or always"
            " a tuple; a default tensor, such as a mask of zeros or ones, instead of"
            " None); or warm up with one call of each type"
        )


class ContainerShape(Recompile):
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
    cause_text = (
        "the contents of `{guard.source}` are unrolled while tracing, so its"
        " {guard.cause} is compiled in"
    )
    nodes = (ast.For, ast.ListComp, ast.GeneratorExp, ast.Call)
    shown_by = ("RC212", "RC213", "RC214", "RC290", "RC215", "RC299")
    calls = 3
    joins = ("torch.stack", "torch.cat", "torch.concat", "torch.vstack", "torch.hstack")

    def changed(self, guard: Guard, group: RecompileGroup) -> str:
        what = "length" if guard.cause == "length" else "keys"
        return f"the {what} of `{guard.source}` changed ({values_seen(group)})"

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        if group.first.path is not None and len(group.first.path) == 1:
            return (
                f"pass the same arguments to {group.compiled} in every call; where one"
                " is missing, pass a tensor or the default"
            )
        if guard.cause == "keys":
            return (
                f"give `{guard.source}` the same keys in the same order on every call,"
                " or pass its tensors as separate arguments"
            )
        return (
            f"keep `{guard.source}` at a fixed length: write into a preallocated tensor"
            " (index_copy_, or self.buffer[:, i] = ...), stack the items into one"
            " tensor, or keep the list outside the compiled function"
        )

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
                    "build one tensor (torch.stack or a padded batch) before the"
                    " compiled call and pass it",
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


class AttributeChange(Recompile):
    """An attribute of a module or object changes between calls.

    ## Why
    Dynamo reads attributes while tracing. An int attribute of an nn.Module stays a
    constant; it never becomes dynamic.

    ## Bad
        self.calls += 1

    ## Good
        self.register_buffer("calls", torch.tensor(0), persistent=False)   # in __init__

    ## Fix safety
    The values are the same. A tensor cannot decide a Python branch.
    """

    code = "RC213"
    settings = (_DYNAMIC_INT,)
    causes = ("attribute",)
    changed_text = "the attribute `{guard.source}` changed ({seen})"
    cause_text = (
        "`{guard.source}` is a Python value that was compiled in as {guard.expected}"
    )
    nodes = (ast.AugAssign, ast.Assign)
    shown_by = ("RC213", "RC290", "RC215", "RC299")
    calls = 3

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        name = guard.source.rsplit(".", 1)[-1]
        if self.per_value(guard):
            return (
                f"keep the attribute `{guard.source}` fixed: set it once before"
                f" compiling, or compile a separate module for each value of {name}; if"
                " it must change, warm up with each value"
            )
        return _tensor_in_attribute(guard, group)

    def severity(self, group: RecompileGroup) -> Severity:
        # Int attributes of a module never become dynamic: each value recompiles.
        static = _HINT in group.guard.text
        usual = super().severity(group)
        return "medium" if static and usual == "low" else usual

    def look(self, node: ast.AST, at: Flow) -> Iterator[Match]:
        assert isinstance(node, ast.AugAssign | ast.Assign)
        name = _counted(node, at)
        if name is None or not _is_integer(name, at):
            return
        facts = attribute_facts(name, [str(at.source.path)], line=node.lineno)
        yield Match(
            node,
            cause=f"compiled code holds for one value of `self.{name}`, and each call"
            " changes it",
            advice=assembled(
                as_tensor(name, facts, None, in_module=_is_module(at)),
                _updated_outside(f"self.{name}", facts),
                _computed_outside(facts),
            ),
        )


def _tensor_in_attribute(guard: Guard, group: RecompileGroup) -> str:
    """How to keep a number that changes in a tensor, or out of the compiled code."""
    owner, _, name = guard.source.rpartition(".")
    own = group.frame if owner == "self" and group.place.owner == "user" else None
    facts = attribute_facts(
        name, user_files(group), line=own.line if own is not None else None
    )
    dtype = ", dtype=torch.float64" if is_float(guard.expected) else ""
    in_force = has_setting(group, _IN_MODULES, value=True)
    if (
        in_force
        and (group.count or 1) <= _SETTLED
        and not _needs_constant(facts, group)
    ):
        return f"no edit is needed: {_DYNAMIC_INT.code} makes it dynamic"
    is_dynamic = _HINT in guard.text and not _needs_constant(facts, group)
    dynamic = setting(group, _DYNAMIC_INT)
    return assembled(
        as_tensor(name, facts, guard.expected, in_module=_HINT in guard.text),
        Piece(
            "make it a tensor before the first call: "
            f"{guard.source} = torch.tensor({guard.source}{dtype})",
            owner != "self" and facts.is_plain,
        ),
        _updated_outside(guard.source, facts),
        Piece(dynamic.text, dynamic.when and is_dynamic),
        _computed_outside(facts, when=not is_dynamic),
        otherwise=f"pass the value of `{guard.source}` as an argument, as a tensor",
    )


def _updated_outside(source: str, facts: AttributeFacts) -> Piece:
    return Piece(
        f"update `{source}` outside the compiled function: nothing else there reads it",
        not facts.is_read,
    )


def _computed_outside(facts: AttributeFacts, *, when: bool = True) -> Piece:
    use = facts.python_use
    if use is None:
        return Piece("", when=False)
    return Piece(
        f"`{shorten(use.code)}` at line {use.line} needs the number itself: do that"
        " outside the compiled function, and pass the result as a tensor",
        when,
    )


def _needs_constant(facts: AttributeFacts, group: RecompileGroup) -> bool:
    """Whether a use of the number makes each value a constant of the graph."""
    use = facts.python_use
    if use is None:
        return False
    listed = attribute_facts(use.indexed.rpartition(".")[2], user_files(group)).first
    in_list = listed is not None and not listed.value.startswith("torch.")
    return not use.indexed or in_list


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


class GlobalValue(Recompile):
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
    advice_text = (
        "pass `{guard.source}` as an argument instead of reading the global in the"
        " compiled function"
    )
    nodes = (ast.AugAssign,)
    shown_by = ("RC214", "RC290", "RC215", "RC299")
    calls = 3

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        is_number = (guard.expected or "").lstrip("-")[:1].isdigit()
        tensor = f"torch.tensor({guard.source})"
        return assembled(
            Piece(f"{super().ways(guard, group)}; if it is a number, as {tensor}"),
            Piece(
                f"where a library reads it, store a tensor there: `{guard.source} ="
                f" {tensor}`, updated in place",
                is_number and not guard.source.isidentifier(),
            ),
        )

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


class NewObject(Recompile):
    """A function, closure or other object is a new one in each call.

    ## Why
    Dynamo guards on the identity of functions and of objects whose contents it cannot
    inspect.

    ## Bad
        for x in data: run(x, lambda y: y + 1)

    ## Good
        def increment(y): return y + 1
        for x in data: run(x, increment)

    ## Fix safety
    The values are the same if the function does not depend on where it is created.
    """

    code = "RC215"
    causes = ("identity",)

    def changed(self, guard: Guard, group: RecompileGroup) -> str:
        if name := _class_of(guard):
            return (
                f"`{guard.source}` is not of the class {name} that was compiled"
                " (another class, or this one created again)"
            )
        return f"`{guard.source}` is another {guard.other or 'object'} than before"

    def why(self, guard: Guard, group: RecompileGroup) -> str:
        if name := _class_of(guard):
            return f"the graph holds for one class of `{guard.source}` ({name})"
        return (
            f"the graph holds for one particular `{guard.source}`"
            f" ({guard.other or 'an object'}), by identity"
        )

    def ways(self, guard: Guard, group: RecompileGroup) -> str:
        once = (
            f"create `{guard.source}` (and its class) once, outside the loop, and reuse"
            " the same one each time; pass what differs as a tensor argument"
        )
        if group.place.owner == "library" and group.facts.of(BreakEvent):
            return (
                f"remove the graph breaks: because of them torch compiles"
                f" {group.function} separately, once for each `{guard.source}`"
            )
        if guard.other in {"function", "code"}:
            return once
        return (
            f"{once}; if `{guard.source}` is an enum or a flag, each value gets its own"
            " graph: keep it fixed, or compile a separate function for each constant"
        )


def _class_of(guard: Guard) -> str:
    """The class that a guard asks for; empty if it asks for one particular object."""
    name = (guard.other or "").removeprefix("object of class ")
    return name if name != (guard.other or "") else ""


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
    changed_text = "the global state `{guard.source}` differs between calls"
    cause_text = "torch's `{guard.source}` is part of what was compiled"
    advice_text = (
        "set `{guard.source}` to the same value around every call; if you need both"
        " (training and evaluation), warm up with one call in each, or compile a"
        " separate function for each"
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
    changed_text = "`{guard.source}` flips between train() and eval()"
    cause_text = (
        "`{guard.source}` decides what dropout and batch norm do, so each mode is"
        " compiled apart"
    )
    advice_text = (
        "expected once per mode: warm up with one call in train() and one in eval(), or"
        " use two separate compiled modules, one for training and one for evaluation"
    )


class LearningRate(Recompile):
    """A learning rate that is a Python float changes.

    ## Why
    The settings in an optimizer's param_groups are Python values, and a scheduler
    changes them.

    ## Bad
        torch.optim.SGD(parameters, lr=0.1)

    ## Good
        torch.optim.SGD(parameters, lr=torch.tensor(0.1))

    ## Fix safety
    The steps are the same. Some schedulers convert a tensor back into a float.
    """

    code = "RC218"
    rewrites = ("compiling.learning_rate",)
    reference = torch_pages.RATES
    causes = ("learning_rate",)
    changed_text = (
        "the learning rate `{guard.source}` is a Python float that changes ({seen})"
    )
    advice_text = (
        "create the optimizer with a tensor: lr=torch.tensor(rate), on a GPU with"
        " capturable=True if the optimizer has that option; a float costs one recompile"
    )
    certain = False
    source_severity = "low"
    calls = 3
    source_text = (
        "the optimizer step would compile twice: its learning rate is a Python float"
        " that changes"
    )

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
