"""Finds the external state that traced code reads, from its source.

Takes functions as frames (file, first line, name). Returns reads with their lines:
environment variables, numpy's random stream, the clock, whether code is being compiled,
results assumed constant, registered hooks and global names. Comments and strings are
ignored.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torchproof.records import Frame, blame, original_name

What = Literal[
    "environment",
    "numpy_random",
    "clock",
    "compiling",
    "constant_result",
    "hook",
    "global",
]
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_ENVIRONMENT = {"os.getenv", "os.environ.get", "os.environ.setdefault"}
_COMPILING = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_DATES = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
_TIMES = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"}
_CONSTANT = "assume_constant_result"


@dataclass(frozen=True)
class Read:
    """One read. `values` are strings that the function may compare it with."""

    what: What
    name: str
    frame: Frame
    values: tuple[str, ...] = ()


def reads_of(functions: Iterable[Frame]) -> list[Read]:
    """All reads of the functions, in the order of their lines."""
    reads = {read: None for each in functions for read in _reads_of(each)}
    return sorted(reads, key=lambda read: (read.frame.file, read.frame.line))


def _reads_of(function: Frame) -> Iterator[Read]:
    file = _file(function.file)
    node = file.function(function)
    if node is None:
        return
    nodes = list(_own_nodes(node))
    for each in nodes:
        for what, name in file.kinds(each):
            line = getattr(each, "lineno", function.line)
            text = blame.source_line(function.file, line).strip()
            frame = Frame(function.file, line, original_name(function.function), text)
            values = _strings(nodes) - {name} if what == "environment" else set()
            yield Read(what=what, name=name, frame=frame, values=tuple(sorted(values)))


def _own_nodes(function: _Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of nested functions and classes."""
    body = function.body if isinstance(function.body, list) else [function.body]
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, _Function | ast.ClassDef):
            queue += ast.iter_child_nodes(node)


def _strings(nodes: Iterable[ast.AST]) -> set[str]:
    constants = (node for node in nodes if isinstance(node, ast.Constant))
    return {each.value for each in constants if isinstance(each.value, str)}


@functools.lru_cache(maxsize=256)
def _file(path: str) -> _File:
    return _File(blame.tree_of(path))


class _File:
    """A parsed file: its functions, imports and global names."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self._functions = [node for node in nodes if isinstance(node, _Function)]
        self._imported: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name if alias.asname else alias.name.split(".")[0]
                    self._imported[alias.asname or first] = first
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    origin = f"{node.module or ''}.{alias.name}"
                    self._imported[alias.asname or alias.name] = origin
        self._constant = {
            node.name
            for node in self._functions
            if isinstance(node, ast.FunctionDef)
            and any(self._dotted(d).endswith(_CONSTANT) for d in node.decorator_list)
        }
        self._globals = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def function(self, frame: Frame) -> _Function | None:
        """The innermost function with the frame's name around the frame's line."""
        name = original_name(frame.function)
        around = [
            node
            for node in self._functions
            if _first_line(node) <= frame.line <= (node.end_lineno or node.lineno)
            and getattr(node, "name", "<lambda>") == name
        ]
        return max(around, key=_first_line, default=None)

    def kinds(self, node: ast.AST) -> Iterator[tuple[What, str]]:
        """The kinds and names of what a node reads."""
        if isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Subscript):
            if self._dotted(node.value) == "os.environ":
                yield "environment", _text(node.slice)
        elif isinstance(node, ast.Compare) and isinstance(
            node.ops[0], ast.In | ast.NotIn
        ):
            if self._dotted(node.comparators[0]) == "os.environ":
                yield "environment", _text(node.left)
        elif isinstance(node, ast.Name) and node.id in self._globals:
            yield "global", node.id

    def _call(self, node: ast.Call) -> Iterator[tuple[What, str]]:
        called = self._dotted(node.func)
        last = called.rpartition(".")[2]
        if called in _ENVIRONMENT and node.args:
            yield "environment", _text(node.args[0])
        elif called.startswith("numpy.random."):
            yield "numpy_random", called
        elif last in _COMPILING:
            yield "compiling", last
        elif called.endswith(tuple(_DATES)) or (
            called.startswith("time.") and last in _TIMES
        ):
            yield "clock", called
        elif last.startswith("register_") and last.endswith("hook"):
            yield "hook", last
        elif last in self._constant:
            yield "constant_result", last

    def _dotted(self, node: ast.AST) -> str:
        """The dotted name, such as `os.environ.get`, with import aliases resolved."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ".".join(reversed(parts))
        parts.append(self._imported.get(node.id, node.id))
        return ".".join(reversed(parts))


def _first_line(node: _Function) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)
