"""TorchScript: wrong traces, code that scripting refuses, and mixing with compile."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import Match, SourceRule
from torchproof.checking.rules.value_breaks import TensorBranch, TensorToPython
from torchproof.checking.static import bindings
from torchproof.checking.static.bindings import Bindings
from torchproof.checking.static.flow import Flow
from torchproof.checking.static.kinds import Kind
from torchproof.checking.static.program import COMPILE, Program
from torchproof.checking.static.source import Class, Function, Source, walk

TRACE = ("torch.jit.trace",)
SCRIPT = ("torch.jit.script",)
_DEPRECATED = (
    *TRACE,
    *SCRIPT,
    "torch.jit.trace_module",
    "torch.jit.freeze",
    "torch.jit.optimize_for_inference",
)
_REPLACEMENT = (
    "torch.compile for speed in Python, torch.export for a file without Python"
)


def _calls(source: Source, names: tuple[str, ...]) -> Iterator[ast.Call]:
    if "jit" not in source.text:
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and source.dotted(node.func) in names:
            yield node


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
    """

    code = "TS101"
    source_severity = "high"
    cause_text = (
        "torch.jit.trace records the operations of one call; what Python decides from a"
        " tensor's value is not among them"
    )

    def read(self, source: Source) -> Iterator[Match]:
        for call in _calls(source, TRACE):
            subject = call.args[0] if call.args else None
            code = _code(subject, bindings.of(source))
            if isinstance(code, Class):
                code = code.methods.get("forward")
            if code is None or "is_tracing" in source.text:
                continue
            for place, text in _decided(code, source):
                yield Match(
                    call,
                    f"the trace of {code.name} fixes the result of `{text}` (line"
                    f" {place}) for the example input: other inputs silently give wrong"
                    " results",
                    advice=f"use torch.where instead of the branch, and {_REPLACEMENT}",
                )
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
    cause_text = "torch warns of TorchScript on every use and develops it no further"

    def read(self, source: Source) -> Iterator[Match]:
        for call in _calls(source, _DEPRECATED):
            yield self._match(call.func, source)
        if "jit" not in source.text:
            return
        for function in source.functions.values():
            for each in function.node.decorator_list:
                if source.dotted(each) in SCRIPT:
                    yield self._match(each, source)

    def _match(self, node: ast.expr, source: Source) -> Match:
        name = source.dotted(node)
        return Match(node, message=f"{name} is deprecated", advice=f"use {_REPLACEMENT}")


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
    The program raised an error before.
    """

    code = "TS103"
    source_severity = "high"
    cause_text = (
        "TorchScript is a part of Python, and the whole function must be written in it,"
        " branches that are never taken too"
    )

    def read(self, source: Source) -> Iterator[Match]:
        visited: set[Function] = set()
        for function in _scripted(source):
            for each in _reached(function, source):
                if each not in visited:
                    visited.add(each)
                    yield from self._refused(each)

    def _refused(self, function: Function) -> Iterator[Match]:
        for node, what, fix in _unsupported(function):
            yield Match(
                node,
                message=f"torch.jit.script refuses {function.name}: {what}",
                advice=f"{fix}; or use torch.compile, which supports plain Python",
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
    node = function.node
    arguments = node.args
    if arguments.vararg or arguments.kwarg:
        yield node, "it takes *args or **kwargs", "name the arguments"
    if any(default is not None for default in arguments.kw_defaults):
        yield node, "it has a keyword-only default", "make it a positional argument"
    plain = [*arguments.posonlyargs, *arguments.args]
    with_default = plain[len(plain) - len(arguments.defaults) :]
    for parameter, default in zip(with_default, arguments.defaults, strict=True):
        if isinstance(default, ast.List | ast.Dict | ast.Set):
            yield default, "a default value is mutable", "use None as the default"
        elif parameter.annotation is None and _is_plain(default):
            yield (
                default,
                f"{parameter.arg} has no annotation, so its type is Tensor",
                f"annotate it: {parameter.arg}: {type(default.value).__name__}",  # type: ignore[attr-defined]
            )
    for statement in node.body:
        for each in walk(statement):
            refusal = _REFUSED.get(type(each))
            if refusal is not None:
                assert isinstance(each, ast.expr | ast.stmt)
                yield each, *refusal
                return


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(
        node.value, bool | int | float | str
    )


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
    cause_text = (
        "a module is made in training mode, the trace keeps what it does there, and"
        " eval() on the traced module changes nothing of it"
    )
    advice_text = "call model.eval() before tracing"

    def read(self, source: Source) -> Iterator[Match]:
        if ".eval()" in source.text or "train(False)" in source.text:
            return
        for call in _calls(source, TRACE):
            code = _code(call.args[0] if call.args else None, bindings.of(source))
            if not isinstance(code, Class):
                continue
            layer = _trained_layer(code)
            if layer is not None:
                text = source.brief(call)
                yield Match(call, message=f"`{text}` records {layer} in training mode")


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
    advice_text = "pass the original module to torch.compile, and remove TorchScript"

    def read(self, source: Source) -> Iterator[Match]:
        if ".compile" not in source.text or ".jit" not in source.text:
            return
        for call in _calls(source, (*COMPILE, *TRACE, *SCRIPT)):
            subject: ast.AST | None = call.args[0] if call.args else None
            if isinstance(subject, ast.Name | ast.Attribute):
                subject = bindings.of(source).meaning(subject)
            inner = (
                source.dotted(subject.func) if isinstance(subject, ast.Call) else None
            )
            outer = source.dotted(call.func)
            if outer in COMPILE and inner in _DEPRECATED:
                yield self._match(call, f"the result of {inner}", source)
            elif outer not in COMPILE and inner in COMPILE:
                yield self._match(call, "the result of torch.compile", source)

    def _match(self, call: ast.Call, origin: str, source: Source) -> Match:
        text = source.brief(call)
        if source.dotted(call.func) in COMPILE:
            message = f"`{text}` compiles nothing: its input is {origin}"
            cause = (
                "Dynamo traces Python, and TorchScript has none: what is traced runs as"
                " it is, and for what is scripted newer versions raise"
            )
        else:
            message = f"`{text}` raises: its input is {origin}"
            cause = "TorchScript takes Python functions, and no compiled ones"
        return Match(call, message=message, cause=cause)
