"""The line that stored a tensor where its holder was found.

Comes in: the way to the tensor, as its referrers gave it, and the stack that produced
it. Goes out: the statement that binds that name, nearest to the producing line.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchproof.places import whose
from torchproof.records import Frame

_ADDING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
_ADDING |= {"put", "__setitem__", "register_buffer"}


@dataclass(frozen=True)
class _Store:
    """A statement that binds `name`, or adds to what it names."""

    name: str
    attribute: bool
    first: int
    last: int
    function: tuple[int, int]


def stored_at(path: str, frames: Sequence[Frame]) -> Frame | None:
    """Where `path` was bound, in a function that ran; None if the source does not tell.

    The innermost function that binds it counts.
    """
    name, attribute = _bound(path)
    near = [f for f in reversed(frames) if whose(f.file) in {"user", "library"}]
    for frame in near:
        inside = [
            store
            for store in _stores(frame.file, name, attribute)
            if store.function[0] <= frame.line <= store.function[1]
        ]
        if inside:
            line = frame.line
            return _frame(frame.file, min(inside, key=lambda s: _distance(s, line)))
    return None


def _bound(path: str) -> tuple[str, bool]:
    """The name a statement binds on the way: `history` of `self.history['x'][3]`."""
    if path.endswith(".grad"):
        return "", False
    way = re.match(r"[\w.]*", path)
    names = way[0].split(".") if way else [""]
    return names[-1], len(names) > 1


def _distance(store: _Store, line: int) -> tuple[bool, int]:
    """Statements that end before the line come last."""
    return store.last < line, abs(store.first - line)


def _frame(file: str, store: _Store) -> Frame:
    code = linecache.getline(file, store.first).strip()
    return Frame(file, store.first, "", code)


def _stores(file: str, name: str, attribute: bool) -> list[_Store]:
    wanted = (name, attribute)
    return [s for s in _every_store(file) if (s.name, s.attribute) == wanted]


@functools.lru_cache(maxsize=64)
def _every_store(file: str) -> tuple[_Store, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_walk(tree, (1, 10**9)))


def _walk(node: ast.AST, function: tuple[int, int]) -> Iterator[_Store]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
            inner = (first, child.end_lineno or child.lineno)
        if isinstance(child, ast.stmt):
            for name, attribute in _targets(child):
                last = child.end_lineno or child.lineno
                yield _Store(name, attribute, child.lineno, last, function)
        yield from _walk(child, inner)


def _targets(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _names(target)
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        yield from _names(statement.target)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and called.attr in _ADDING:
            yield from _names(called.value)


def _names(target: ast.expr) -> Iterator[tuple[str, bool]]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _names(each)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Attribute):
        yield target.attr, True
    elif isinstance(target, ast.Name):
        yield target.id, False
