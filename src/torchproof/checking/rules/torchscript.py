"""TorchScript: wrong traces, code that scripting refuses, and mixing with compile."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.rules.value_breaks import TensorBranch, TensorToPython
from torchproof.checking.static import bindings, changes
from torchproof.checking.static.bindings import Bindings
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.program import COMPILE, Program
from torchproof.checking.static.source import Class, Function, Source, walk
from torchproof.records import Remedy

TRACE = ("torch.jit.trace",)
SCRIPT = ("torch.jit.script",)
_DEPRECATED = (
    *TRACE,
    *SCRIPT,
    "torch.jit.trace_module",
    "torch.jit.freeze",
    "torch.jit.optimize_for_inference",
)


def _calls(source: Source, names: tuple[str, ...]) -> Iterator[ast.Call]:
    return source.calls(*names) if "jit" in source.text else iter(())


def _code(node: ast.AST | None, names: Bindings) -> Function | Class | None:
    """The traced or scripted function or class, if the file contains it."""
    source, made = names.source, names.origin(node)
    if isinstance(made, ast.Call):
        return source.classes.get(source.dotted(made.func) or "")
    if isinstance(made, ast.ClassDef):
        return source.classes.get(made.name)
    if isinstance(made, ast.FunctionDef):
        inside = source.function_at(made)
        return source.functions.get(f"{inside}.{made.name}" if inside else made.name)
    return None


class TorchScript(SourceRule):
    """Base class of the rules for torch.jit."""

    reference = torch_pages.TORCHSCRIPT


class TracedBranch(TorchScript):
    """torch.jit.trace uses one outcome of a branch or value for all inputs.

    ## Why
    The trace contains the operations that ran for the example. An `if` on a tensor, or
    `.item()`, ran in Python and is not part of it. Other inputs get wrong outputs, and
    no error is raised.

    ## Bad
        def gate(x):
            if x.sum() > 0:
                return x + 1
            return x - 1

        traced = torch.jit.trace(gate, example)

    ## Good
        def gate(x):
            return torch.where(x.sum() > 0, x + 1, x - 1)

        fast = torch.compile(gate)

    ## Fix safety
    Both sides are computed. Outputs for inputs unlike the example become right.
    torch.compile notices another outcome; torch.export refuses such a branch.
    """

    code = "TS101"
    source_severity = "high"
    source_text = "the trace of {name} fixes `{code}` (line {line}) for all inputs"
    cause_text = (
        "torch.jit.trace records the operations of one call; what Python decides from a"
        " tensor's value is not among them"
    )
    advice_text = "keep `{code}` a tensor: torch.where instead of a branch"

    def read(self, source: Source) -> Iterator[Match]:
        for call in _calls(source, TRACE):
            subject = call.args[0] if call.args else None
            code = _code(subject, bindings.of(source))
            if isinstance(code, Class):
                code = code.methods.get("forward")
            if code is None or "is_tracing" in source.text:
                continue
            for line, text in _decided(code, source):
                yield Match(call, words={"name": code.name, "code": text, "line": line})
                break


def _decided(function: Function, source: Source) -> Iterator[tuple[int, str]]:
    """Where the function, or one it calls, reads the value of a tensor into Python."""
    program = Program([source])
    waiting, visited = [function], {function}
    decisions: list[tuple[int, str]] = []
    rules = (TensorBranch(), TensorToPython())

    def look(node: ast.AST, at: Flow) -> None:
        for rule in rules:
            if isinstance(node, rule.nodes):
                for match in rule.look(node, at):
                    line = getattr(match.node, "lineno", 0)
                    decisions.append((line, at.source.brief(match.node, 40)))
        if isinstance(node, ast.Call):
            callee = program.callee(node, at.function)
            if callee is not None and callee not in visited:
                visited.add(callee)
                waiting.append(callee)

    while waiting:
        each = waiting.pop()
        Flow(each, program, arguments=_tensors(each, each is function), look=look).run()
    return iter(sorted(decisions))


def _tensors(function: Function, is_traced: bool) -> dict[str, Kind]:
    """The kinds of the arguments: the traced function takes tensors."""
    if not is_traced:
        return {}
    arguments = function.node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    if function.is_bound:
        plain = plain[1:]
    return {each.arg: Kind.TENSOR for each in plain if each.annotation is None}


class DeprecatedScript(TorchScript):
    """torch.jit is deprecated.

    ## Why
    Torch warns on every use of script, trace and freeze. The replacements accept
    ordinary Python.

    ## Bad
        fast = torch.jit.script(model)

    ## Good
        fast = torch.compile(model)                        # in Python
        program = torch.export.export(model, (example,))   # to ship without Python

    ## Fix safety
    The values are the same up to rounding. A program that is loaded from C++ needs
    torch.export and AOTInductor instead of a TorchScript file.
    """

    code = "TS102"
    source_severity = "low"
    source_text = "{name} is deprecated"
    cause_text = "torch warns of TorchScript on every use and develops it no further"
    advice_text = (
        "use torch.compile in Python, and torch.export for a file that runs without it"
    )

    def read(self, source: Source) -> Iterator[Match]:
        uses = [call.func for call in _calls(source, _DEPRECATED)]
        for function in source.functions.values() if "jit" in source.text else ():
            marks = function.node.decorator_list
            uses += [each for each in marks if source.dotted(each) in SCRIPT]
        for node in uses:
            yield Match(node, words={"name": source.dotted(node)})


class Unscriptable(TorchScript):
    """Scripted code contains something that torch.jit.script rejects.

    ## Why
    TorchScript compiles the whole function, including branches that never run. It does
    not support try, lambda, generators, inner functions, sets, `:=`, match, imports,
    *args and **kwargs, or defaults without an annotation.

    ## Bad
        @torch.jit.script
        def scale(x, factor=2.0):
            return x * factor

    ## Good
        @torch.compile
        def scale(x, factor=2.0):
            return x * factor

    ## Fix safety
    The program raised an error before. torch.compile takes plain Python.
    """

    code = "TS103"
    source_severity = "high"
    source_text = "torch.jit.script refuses {name}: {what}"
    cause_text = (
        "TorchScript is a part of Python, and the whole function must be written in it,"
        " branches that are never taken too"
    )
    advice_text = "{instead}"

    def read(self, source: Source) -> Iterator[Match]:
        visited: set[Function] = set()
        for function in _scripted(source):
            for each in _reached(function, source):
                if each not in visited:
                    visited.add(each)
                    yield from self._refused(each)

    def _refused(self, function: Function) -> Iterator[Match]:
        for node, what, instead in _unsupported(function):
            words = {"name": function.name, "what": what, "instead": instead}
            yield Match(node, words=words)
        for parameter, default in _untyped(function):
            annotated = f"{parameter.arg}: {type(default.value).__name__}"
            what = f"{parameter.arg} has no annotation, so its type is Tensor"
            new: dict[changes.Node, str] = {parameter: annotated}
            title = f"annotate it: {annotated}"
            yield Match(
                default,
                words={"name": function.name, "what": what, "instead": title},
                remedy=changes.edit(title, function.source, new),
            )


def _scripted(source: Source) -> Iterator[Function]:
    if "jit" not in source.text:
        return
    for function in source.functions.values():
        if any(source.dotted(d) in SCRIPT for d in function.node.decorator_list):
            yield function
    for call in _calls(source, SCRIPT):
        code = _code(call.args[0] if call.args else None, bindings.of(source))
        if isinstance(code, Class):
            forward = code.methods.get("forward")
            if forward is not None:
                yield forward
        elif code is not None:
            yield code


def _reached(function: Function, source: Source) -> Iterator[Function]:
    """A function and the functions of the file that are scripted with it."""
    program = Program([source])
    waiting, visited = [function], {function}
    while waiting:
        each = waiting.pop()
        if set(each.decorators) & {"torch.jit.ignore", "torch.jit.unused"}:
            continue
        yield each
        for node in walk(each.node):
            callee = program.callee(node, each) if isinstance(node, ast.Call) else None
            if callee is not None and callee not in visited:
                visited.add(callee)
                waiting.append(callee)


_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("it has a try block", "test for the condition instead of catching"),
    ast.Lambda: ("it has a lambda", "define a function in the module"),
    ast.Yield: ("it is a generator", "return a list"),
    ast.YieldFrom: ("it is a generator", "return a list"),
    ast.SetComp: ("it builds a set", "use a list or a dict"),
    ast.Set: ("it builds a set", "use a list or a dict"),
    ast.NamedExpr: ("it uses `:=`", "assign in a separate statement"),
    ast.Import: ("it has an import", "import at the top of the file"),
    ast.ImportFrom: ("it has an import", "import at the top of the file"),
    ast.Global: ("it sets a global variable", "return the value"),
    ast.Nonlocal: ("it sets a variable of an outer function", "return the value"),
    ast.Match: ("it uses match", "use if and elif"),
    ast.FunctionDef: ("it defines a function", "define it at the top of the file"),
    ast.ClassDef: ("it defines a class", "define it at the top of the file"),
}


def _unsupported(function: Function) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """What is refused, with the reason and what can be written instead."""
    node, arguments = function.node, function.node.args
    if arguments.vararg or arguments.kwarg:
        yield node, "it takes *args or **kwargs", "name the arguments"
    if any(default is not None for default in arguments.kw_defaults):
        yield node, "it has a keyword-only default", "make it a positional argument"
    for default in arguments.defaults:
        if isinstance(default, ast.List | ast.Dict | ast.Set):
            yield default, "a default value is mutable", "use None as the default"
    for statement in node.body:
        for each in walk(statement):
            if type(each) in _REFUSED:
                assert isinstance(each, ast.expr | ast.stmt)
                yield each, *_REFUSED[type(each)]
                return


def _untyped(function: Function) -> Iterator[tuple[ast.arg, ast.Constant]]:
    """Parameters whose default is no tensor, without an annotation."""
    arguments = function.node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    with_default = plain[len(plain) - len(arguments.defaults) :]
    for parameter, default in zip(with_default, arguments.defaults, strict=True):
        value = default.value if isinstance(default, ast.Constant) else None
        if parameter.annotation is None and isinstance(value, bool | int | float | str):
            assert isinstance(default, ast.Constant)
            yield parameter, default


class TracedTraining(TorchScript):
    """A module with dropout or batch norm is traced in training mode.

    ## Why
    The trace contains what the module did in training mode. eval() on the traced module
    does not change it: dropout stays active, and running statistics keep changing.

    ## Bad
        traced = torch.jit.trace(Net(), example)

    ## Good
        traced = torch.jit.trace(Net().eval(), example)

    ## Fix safety
    The outputs become those of eval mode.
    """

    code = "TS104"
    source_text = "`{at.expression}` records {layer} in training mode"
    cause_text = (
        "the trace keeps what the module does in training mode; eval() on the traced"
        " module changes nothing"
    )
    advice_text = "call eval() on the module before tracing it"

    def read(self, source: Source) -> Iterator[Match]:
        if ".eval()" in source.text or "train(False)" in source.text:
            return
        for call in _calls(source, TRACE):
            code = _code(call.args[0] if call.args else None, bindings.of(source))
            layer = _trained_layer(code) if isinstance(code, Class) else None
            if layer is not None:
                own = f"{changes.code(source, call.args[0])}.eval()"
                edit = changes.edit(
                    f"trace {own}", source, {call.args[0]: own}, tier="unsafe"
                )
                yield Match(call, words={"layer": layer}, remedy=edit)


def _trained_layer(code: Class) -> str | None:
    for method in code.methods.values():
        for node in walk(method.node):
            if isinstance(node, ast.Call):
                dotted = code.source.dotted(node.func) or ""
                name = dotted.removeprefix("torch.nn.")
                if name != dotted and name.startswith(("Dropout", "BatchNorm")):
                    return name
    return None


class MixedWithCompile(TorchScript):
    """torch.compile is applied to TorchScript, or TorchScript to compiled code.

    ## Why
    Dynamo traces Python, and TorchScript has none. For a scripted module torch raises
    an error or compiles nothing, depending on the version. A traced module runs
    unchanged. torch.jit raises an error for a compiled module.

    ## Bad
        fast = torch.compile(torch.jit.script(model))

    ## Good
        fast = torch.compile(model)

    ## Fix safety
    The values are the same up to rounding.
    """

    code = "TS105"
    source_severity = "high"
    source_text = "`{at.expression}` {fails}: its input is the result of {inner}"
    cause_text = (
        "Dynamo traces Python, and TorchScript has none; torch.jit takes Python"
        " functions, and no compiled ones"
    )
    advice_text = "pass the original module to {outer}"

    def read(self, source: Source) -> Iterator[Match]:
        if ".compile" not in source.text or ".jit" not in source.text:
            return
        names = bindings.of(source)
        for call in _calls(source, (*COMPILE, *TRACE, *SCRIPT)):
            given: ast.AST | None = call.args[0] if call.args else None
            if isinstance(given, ast.Name | ast.Attribute):
                given = names.meaning(given)
            inner = source.dotted(given.func) if isinstance(given, ast.Call) else None
            outer = source.dotted(call.func)
            compiles = outer in COMPILE
            if inner not in (_DEPRECATED if compiles else COMPILE):
                continue
            assert isinstance(given, ast.Call)
            words = {
                "fails": "compiles nothing" if compiles else "raises",
                "inner": inner,
                "outer": outer,
            }
            yield Match(call, words=words, remedy=_unwrapped(call, given, source))


def _unwrapped(call: ast.Call, inner: ast.Call, source: Source) -> Remedy | None:
    """Gives a call what the inner call gets, if its name still means that there."""
    names, given = bindings.of(source), call.args[0]
    own = changes.code(source, inner.args[0]) if inner.args else ""
    if not own or own == changes.code(source, given):
        return None
    same = names.scope(inner) is names.scope(call) and source.is_sure(inner)
    if given is not inner and not same:
        return None
    return changes.edit(
        f"pass {own} to {source.dotted(call.func)}", source, {given: own}
    )
