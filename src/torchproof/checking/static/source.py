"""Parses a Python file without running it: names, classes, functions, comments."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from torchproof.records import cells, one_line

N = TypeVar("N", bound=ast.AST)

Definition = ast.FunctionDef | ast.AsyncFunctionDef
_IGNORE = re.compile(r"#\s*torchproof:\s*ignore(?:\[([^\]]*)\])?")


@dataclass(frozen=True, eq=False)
class Function:
    """A function or method, and its file and class."""

    node: Definition
    name: str  # qualified
    source: Source
    owner: Class | None = None

    @functools.cached_property
    def decorators(self) -> tuple[str, ...]:
        """Dotted names of the decorators; for a call, of the called function."""
        decorators = []
        for node in self.node.decorator_list:
            called = node.func if isinstance(node, ast.Call) else node
            decorators.append(self.source.dotted(called) or "")
            if isinstance(node, ast.Call) and node.args:  # functools.partial(...)
                decorators.append(self.source.dotted(node.args[0]) or "")
        return tuple(decorators)

    @property
    def parameters(self) -> list[ast.arg]:
        arguments = self.node.args
        return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]

    @property
    def settings(self) -> set[str]:
        """Parameters whose default is a bool, a number or a string: not tensors."""
        arguments = self.node.args
        placed = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(reversed(placed), reversed(arguments.defaults), strict=False),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        return {
            parameter.arg
            for parameter, default in pairs
            if isinstance(default, ast.Constant) and default.value is not None
        }

    @property
    def is_bound(self) -> bool:
        return self.owner is not None and "staticmethod" not in self.decorators


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the file, with the names of its bases resolved."""

    node: ast.ClassDef
    name: str
    source: Source
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)


class Unreadable(Exception):
    """A file cannot be read; the message names the file and the reason."""


def text_of(path: Path) -> str:
    """The text of a file in its declared encoding; raises `Unreadable` if it fails."""
    if path.exists() and not path.is_file():
        raise Unreadable(f"{path} cannot be read: it is not a regular file")
    try:
        raw = cells.read_source(path)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return io.TextIOWrapper(io.BytesIO(raw), encoding).read()
    except Exception as error:  # a codec may raise anything
        reason = one_line(f"{type(error).__name__}: {error}", 100)
        raise Unreadable(f"{path} cannot be decoded: {reason}") from None


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed file."""

    path: Path
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, path: Path) -> Source:
        """Reads and parses a file; raises `Unreadable` if it is not Python."""
        return cls.parse(path, text_of(path))

    @classmethod
    def parse(cls, path: Path, text: str) -> Source:
        try:
            return cls(path, text, ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            place = f"{path}:{line}" if line else str(path)
            raise Unreadable(
                f"{place} cannot be parsed as Python: {type(error).__name__}"
            ) from None

    @functools.cached_property
    def lines(self) -> list[str]:
        return re.split(r"\r\n|\r|\n", self.text)  # counts lines as Python does

    @functools.cached_property
    def names(self) -> Mapping[str, str]:
        """The full name of each imported name: `torch.nn.functional` for `F`."""
        names: dict[str, str] = {}
        for node in self.of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    full = alias.name if alias.asname else alias.name.partition(".")[0]
                    names[alias.asname or full] = full
            elif isinstance(node, ast.ImportFrom):
                origin = "." * node.level + (node.module or "")
                separator = "" if origin.endswith(".") else "."
                for alias in node.names:
                    full = f"{origin}{separator}{alias.name}"
                    names[alias.asname or alias.name] = full
        return names

    @functools.cached_property
    def nodes(self) -> Sequence[ast.AST]:
        return walk(self.tree)

    @functools.cached_property
    def _by_type(self) -> Mapping[type[ast.AST], list[Any]]:
        by_type: dict[type[ast.AST], list[Any]] = {}
        for node in self.nodes:
            by_type.setdefault(type(node), []).append(node)
        return by_type

    def of(self, *types: type[N]) -> list[N]:
        """The nodes of these types, in source order."""
        if len(types) == 1:
            return self._by_type.get(types[0], [])
        return [node for node in self.nodes if isinstance(node, types)]

    @functools.cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in children(node)}

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions with these full names."""
        for node in self.of(ast.Call):
            if self.dotted(node.func) in names:
                yield node

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        at: ast.AST | None = node
        while at is not None and (at := self.parents.get(at)) is not None:
            yield at

    def is_inside(self, node: ast.AST, *types: type[ast.AST]) -> bool:
        """Whether a node of these types is around it, in the same function."""
        for each in self.above(node):
            if isinstance(each, (*types, Definition)):
                return isinstance(each, types)
        return False

    def is_sure(self, node: ast.AST) -> bool:
        """Whether a node runs whenever its function does, as far as it gets there."""
        return not self.is_inside(node, ast.If, ast.Try, ast.For, ast.While)

    def dotted(self, node: ast.AST | None) -> str | None:
        """`torch.nn.functional.relu` for `F.relu`; None if it is not a dotted name."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if not isinstance(node, ast.Attribute):
            return None
        if node not in self._dotted:
            owner = self.dotted(node.value)
            self._dotted[node] = None if owner is None else f"{owner}.{node.attr}"
        return self._dotted[node]

    @functools.cached_property
    def _dotted(self) -> dict[ast.AST, str | None]:
        return {}

    def own(self, node: ast.AST | None) -> str | None:
        """`name` for `self.name`; None for anything else."""
        first, _, name = (self.dotted(node) or "").partition(".")
        return name if first == "self" and name and "." not in name else None

    @functools.cached_property
    def globals(self) -> Mapping[str, ast.expr]:
        """Names that the module assigns, with the last value of each."""
        return {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    @functools.cached_property
    def constants(self) -> Mapping[str, object]:
        """Names that the module assigns once, to a literal: `DEBUG = False`."""
        constants: dict[str, object] = {}
        twice: set[str] = set()
        for node in self.tree.body:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    twice |= {target.id} & set(constants)
                    value = getattr(node, "value", None)
                    if isinstance(value, ast.Constant):
                        constants[target.id] = value.value
        changed = {name for each in self.of(ast.Global) for name in each.names}
        return {k: v for k, v in constants.items() if k not in twice | changed}

    @functools.cached_property
    def _defined(self) -> tuple[dict[str, Class], dict[str, Function]]:
        classes: dict[str, Class] = {}
        functions: dict[str, Function] = {}
        waiting: list[tuple[ast.AST, str, Class | None]] = [(self.tree, "", None)]
        while waiting:
            node, prefix, owner = waiting.pop(0)
            for child in children(node):
                if isinstance(child, Definition):
                    function = Function(child, f"{prefix}{child.name}", self, owner)
                    functions.setdefault(function.name, function)
                    if owner is not None:
                        owner.methods[child.name] = function
                    waiting.append((child, f"{function.name}.", None))
                elif isinstance(child, ast.ClassDef):
                    bases = tuple(self.dotted(base) or "" for base in child.bases)
                    inner = Class(child, f"{prefix}{child.name}", self, bases)
                    classes.setdefault(child.name, inner)
                    waiting.append((child, f"{inner.name}.", inner))
                elif isinstance(child, ast.stmt | ast.ExceptHandler):
                    waiting.append((child, prefix, owner))
        return classes, functions

    @property
    def classes(self) -> Mapping[str, Class]:
        """Every class by its unqualified name, including those inside functions."""
        return self._defined[0]

    @property
    def functions(self) -> Mapping[str, Function]:
        """Every function by its qualified name, including those inside functions."""
        return self._defined[1]

    def function_at(self, node: ast.AST) -> str | None:
        """The qualified name of the function or class that contains a node."""
        words: list[str] = []
        at: ast.AST | None = node
        while (at := self.parents.get(at)) is not None:  # type: ignore[arg-type]
            if isinstance(at, Definition | ast.ClassDef):
                words.append(at.name)
        return ".".join(reversed(words)) or None

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        """The source text of a node, on one line."""
        last = node.end_lineno or node.lineno
        lines = [line.encode() for line in self.lines[node.lineno - 1 : last]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode(errors="replace").split())

    def brief(self, node: ast.AST, limit: int = 60) -> str:
        """The source text of a node, cut to a length that fits in a message."""
        if not isinstance(node, ast.expr | ast.stmt):
            return ""
        text = self.text_of(node)
        return text if len(text) <= limit else text[: limit - 3] + "..."

    def quote(self, node: ast.AST) -> str:
        return f"`{self.brief(node)}`"


def ignores(text: str, lines: tuple[int, int], code: str) -> bool:
    """Whether a comment `torchproof: ignore` names the code, from a line to another."""
    first, last = lines
    ignored = _ignored(text)
    for line in range(first, last + 1):
        codes = ignored.get(line, ())
        if codes is None or code.startswith(codes):
            return True
    return False


@functools.lru_cache(maxsize=64)
def _ignored(text: str) -> Mapping[int, tuple[str, ...] | None]:
    """By line, the codes that a comment ignores; None stands for all."""
    if "torchproof:" not in text:
        return {}
    ignored: dict[int, tuple[str, ...] | None] = {}
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # what is no Python
        # Read comments only: the same text in a string has no effect.
        for token in tokenize.generate_tokens(StringIO(text).readline):
            if token.type != tokenize.COMMENT:
                continue
            if match := _IGNORE.search(token.string):
                codes = match[1]
                listed = tuple(c.strip().upper() for c in (codes or "").split(","))
                ignored[token.start[0]] = None if codes is None else listed
    return ignored


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """A node and every node below it, in source order.

    A tree is walked many times, so it is listed once: the nodes below each node lie
    next to each other in the list of the whole tree.
    """
    if isinstance(node, ast.Module) and not hasattr(node, "_span"):
        _list(node)
    if (span := getattr(node, "_span", None)) is not None:
        nodes, first, end = span
        return nodes[first:end]  # type: ignore[no-any-return]
    return _below(node) if children(node) else (node,)


def _list(tree: ast.Module) -> None:
    """Lists the nodes of a tree; each with others below it gets its part of the list.

    Nodes without fields, such as `ast.Add()`, are the same object everywhere.
    """
    nodes = _below(tree)
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if below := children(node):
            end = index + 1
            for each in below:
                end = each._span[2] if children(each) else end + 1  # type: ignore[attr-defined]
            node._span = (nodes, index, end)  # type: ignore[attr-defined]


def _below(node: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    waiting = [node]
    while waiting:
        current = waiting.pop()
        nodes.append(current)
        if below := children(current):
            waiting.extend(reversed(below))
    return nodes


# The fields of each type of node that hold others.
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
_PLAIN = {"ctx", "id", "attr", "arg", "asname", "kind", "module", "level"}


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes below a node, in source order, without `ctx`; each node keeps them."""
    try:
        return node._below  # type: ignore[attr-defined,no-any-return]
    except AttributeError:
        pass
    kind = type(node)
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(n for n in node._fields if n not in _PLAIN)
    below: list[ast.AST] = []
    for name in _FIELDS[kind]:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            below.append(value)
        elif isinstance(value, list):
            below += [each for each in value if isinstance(each, ast.AST)]
    node._below = below  # type: ignore[attr-defined]
    return below
