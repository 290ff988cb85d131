"""The line that stored a tensor where its holder was found.

Comes in: the way to the tensor, as its referrers gave it, and the stack that produced
it. Goes out: the statement that binds that name, nearest to the producing line.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchproof.records import Frame, blame

_ADDING = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault"}
_ADDING |= {"put", "__setitem__", "register_buffer"}
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FILE = (1, 10**9)  # the lines outside of functions


@dataclass(frozen=True)
class _Store:
    """A statement that binds `name`, or adds to what it names."""

    name: str
    attribute: bool
    first: int
    last: int
    function: tuple[int, int]
    calls: bool  # whether what is bound comes out of a call


def assignment_site(path: str, frames: Sequence[Frame]) -> Frame | None:
    """Where `path` was bound, in a function that ran; None if the source does not tell.

    The innermost function that binds it counts, and the last name on the way that one
    of them binds. An attribute that none of them binds may be bound by another function
    of their files. To name an object again is no store of what it holds.
    """
    bound = _bound(path)
    for name, attribute in bound:
        another_name = not attribute and len(bound) > 1
        for frame in reversed(frames):
            inside = _inside(frame, name, attribute)
            inside = [store for store in inside if store.calls or not another_name]
            if inside:
                line = frame.line
                return _frame(frame.file, min(inside, key=lambda s: _distance(s, line)))
        if attribute and (site := _only_store(name, frames)):
            return site
    return None


def _only_store(attribute: str, frames: Sequence[Frame]) -> Frame | None:
    """The one line in the files of these frames that binds this attribute."""
    files = dict.fromkeys(frame.file for frame in frames)
    sites = {
        _frame(file, store)
        for file in files
        for store in _read(file)[0]
        if store.attribute and store.name == attribute
    }
    return sites.pop() if len(sites) == 1 else None


def _inside(frame: Frame, name: str, attribute: bool) -> list[_Store]:
    """The stores of a name in the function of a frame."""
    stores, functions = _read(frame.file)
    function = max(f for f in functions if f[0] <= frame.line <= f[1])
    return [
        store
        for store in stores
        if (store.name, store.attribute, store.function) == (name, attribute, function)
    ]


def _bound(path: str) -> list[tuple[str, bool]]:
    """Names that statements bind: `keys`, `past`, `self` of `self.past[3].keys`."""
    if path.endswith(".grad"):
        return []
    first, *others = re.sub(r"\[[^\]]*\]", "", path).split(".")
    return [*((name, True) for name in reversed(others)), (first, False)]


def _distance(store: _Store, line: int) -> tuple[bool, int]:
    """Statements that end before the line come last."""
    return store.last < line, abs(store.first - line)


def _frame(file: str, store: _Store) -> Frame:
    code = blame.source_line(file, store.first).strip()
    return Frame(file, store.first, "", code)


@functools.lru_cache(maxsize=64)
def _read(file: str) -> tuple[tuple[_Store, ...], frozenset[tuple[int, int]]]:
    """The stores of a file, and the first and last lines of its functions."""
    try:
        tree = ast.parse("".join(blame.lines_of(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return (), frozenset({_FILE})
    functions = {_lines(n) for n in ast.walk(tree) if isinstance(n, _FUNCTIONS)}
    return tuple(_walk(tree, _FILE)), frozenset({_FILE, *functions})


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    return first, function.end_lineno or function.lineno


def _walk(node: ast.AST, function: tuple[int, int]) -> Iterator[_Store]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            lines = child.lineno, child.end_lineno or child.lineno
            for name, attribute in _targets(child):
                calls = any(isinstance(part, ast.Call) for part in ast.walk(child))
                yield _Store(name, attribute, *lines, function, calls)
        inner = _lines(child) if isinstance(child, _FUNCTIONS) else function
        yield from _walk(child, inner)


def _is_empty(value: ast.expr | None) -> bool:
    """A constant, or a container with nothing in it yet: no tensor is stored."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func).rpartition(".")[2]
        return called in _CONTAINERS and not any(
            isinstance(n, ast.Call) for each in value.args for n in ast.walk(each)
        )
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return all(_is_empty(each) for each in value.elts)
    return value is None or isinstance(value, ast.Constant)


def _targets(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_empty(statement.value):
        return
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
