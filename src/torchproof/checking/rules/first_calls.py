"""What a library does in its first call alone: hooks that it installs, tables it makes.

A function that returns at once if an attribute says that its work is done can be called
before the compiled call: then no call has anything to trace there.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence

from torchproof.checking.static import changes
from torchproof.checking.static.source import Source
from torchproof.records import (
    Frame,
    Remedy,
    module_of,
    tree_of,
    whose,
)

# An attribute as a condition: `x.done`, `x.done is not None`, `getattr(x, "done", 0)`.
_FLAG = re.compile(
    r"\w+\.(\w+)(?: is not None)?|(?:get|has)attr\(\w+, '(\w+)'(?:, \w+)?\)"
)


def done_before(stack: Sequence[Frame], compiled: Sequence[Frame]) -> Remedy | None:
    """The edit that calls such a function where the user makes the module.

    That is in a class of the user's, or above the only line that compiles the module.
    """
    for number, (frame, inner) in enumerate(itertools.pairwise(stack)):
        name = inner.function.rpartition(".")[2]
        is_method = frame.code == f"self.{name}()"
        is_called = is_method or frame.code == f"{name}(self)"
        if not is_called or whose(inner.file) != "library":
            continue
        if not (_is_done_once(inner) or _is_guarded(frame)):
            continue
        module = None if is_method else module_of(inner.file)
        calls = _modules(stack[: number + 1])
        users = [n for n, (at, _) in enumerate(calls) if whose(at.file) == "user"]
        if not (is_method or module):
            return None
        if users:
            return _below_making(calls[users[-1] :], name, module)
        path = "".join(each for _, each in calls)
        return _above_compiling(compiled, path, name, module)
    return None


def _is_done_once(frame: Frame) -> bool:
    """Whether a function begins with `if self.is_done: return`."""
    name = frame.function.rpartition(".")[2]
    for node in ast.walk(tree_of(frame.file)):
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        first = next((n for n in node.body if not isinstance(n, ast.Expr)), None)
        if isinstance(first, ast.If) and not first.orelse:
            returns = [*map(ast.unparse, first.body)] in (["return"], ["return None"])
            return returns and _is_flag(ast.unparse(first.test), frame.file)
    return False


def _is_guarded(frame: Frame) -> bool:
    """Whether a line runs under `if not self.is_done:` alone."""
    return any(
        isinstance(node, ast.If)
        and [each.lineno for each in node.body] == [frame.line]
        and (test := re.fullmatch(r"not (.+)|(.+) is None", ast.unparse(node.test)))
        and _is_flag(test[1] or test[2], frame.file)
        for node in ast.walk(tree_of(frame.file))
    )


def _is_flag(test: str, file: str) -> bool:
    """Whether a test is of an attribute alone that a later call than __init__ sets."""
    match = _FLAG.fullmatch(test)
    functions = [
        node
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
    ]
    return match is not None and any(
        ast.unparse(target).endswith(f".{match[1] or match[2]}")
        for function in functions
        for node in ast.walk(function)
        for target in _set(node)
    )


def _set(node: ast.AST) -> list[ast.expr]:
    """What a statement sets, `setattr(x, "name", value)` as `x.name`."""
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
        owner, name = node.args[0], ast.unparse(node.args[1])
        return [ast.Attribute(owner, name.strip("'\""))]
    return []


def _modules(stack: Sequence[Frame]) -> list[tuple[Frame, str]]:
    """The lines that call a module, each with its name: `.model` of `self.model(x)`."""
    own = [frame for frame in stack if whose(frame.file) != "torch"]
    return [
        (frame, match[1])
        for frame, inner in itertools.pairwise(own)
        if (match := re.search(r"(?<![\w.])self((?:\.\w+)+)\(", frame.code))
        if not match[1].endswith(f".{inner.function}")  # a method of its own
    ]


def _below_making(
    path: Sequence[tuple[Frame, str]], name: str, module: str | None
) -> Remedy | None:
    (frame, attribute), *_ = path
    source = changes.source_of(frame.file)
    stored = [
        source.parents[node]
        for node in (source.of(ast.Attribute) if source else ())
        if source and not isinstance(node.ctx, ast.Load)
        if source.dotted(node) == f"self{attribute}"
    ]
    made = stored[0] if len(stored) == 1 else None
    if source is None or not isinstance(made, ast.Assign):
        return None
    line = _call(f"self{''.join(each for _, each in path)}", name, module)
    own = changes.code(source, made)
    return _edit(source, {made: own}, name, module, below=line)


def _above_compiling(
    compiled: Sequence[Frame], path: str, name: str, module: str | None
) -> Remedy | None:
    places = {(frame.file, frame.line) for frame in compiled}
    file, at = places.pop() if len(places) == 1 else ("", 0)
    source = changes.source_of(file) if file else None
    node = changes.statement_at(source, at) if source else None
    calls = list(source.calls("torch.compile")) if source else []
    own = [c for c in calls if node in (source.above(c) if source else ())]
    subject = own[0].args[0] if len(own) == 1 and own[0].args else None
    if source is None or node is None or not source.dotted(subject):
        return None
    assert subject is not None
    line = _call(f"{changes.code(source, subject)}{path}", name, module)
    return _edit(source, {node: changes.code(source, node)}, name, module, above=line)


def _call(owner: str, name: str, module: str | None) -> str:
    return f"{name}({owner})" if module else f"{owner}.{name}()"


def _edit(
    source: Source,
    own: Mapping[changes.Node, str],
    name: str,
    module: str | None,
    *,
    above: str = "",
    below: str = "",
) -> Remedy | None:
    line = above or below
    title = f"do once, before the compiled call, what the first call does: `{line}`"
    edit = changes.edit(title, source, own, above=[above] * bool(above), below=below)
    imported = f"from {module} import {name}"
    return changes.with_import(edit, source, imported) if module else edit
