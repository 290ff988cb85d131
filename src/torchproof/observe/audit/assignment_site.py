"""Finds the statement that stored a tensor in a variable, attribute or container.

Takes the path to the tensor, as `referrers` found it, and the stack that produced it.
Returns the statement that binds that name, nearest to the producing line.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchproof.records import Frame, blame

_ADDING_METHODS = {
    "__setitem__",
    "add",
    "append",
    "appendleft",
    "extend",
    "insert",
    "put",
    "register_buffer",
    "setdefault",
    "update",
}
_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FILE = (1, 10**9)  # the lines outside of functions


@dataclass(frozen=True)
class _Binding:
    """A statement that binds `name`, or adds to the container of that name."""

    name: str
    attribute: bool
    first: int
    last: int
    function: tuple[int, int]
    calls: bool  # whether the value comes from a call


def assignment_site(path: str, frames: Sequence[Frame]) -> Frame | None:
    """Where a function on the stack binds `path`; None if the source does not show it.

    The last name of the path that one of the functions binds decides, and the innermost
    of these functions. If none binds an attribute, another function of the same files
    may. A second name for an object does not store what the object contains.
    """
    bound = _bound(path)
    for name, attribute in bound:
        another_name = not attribute and len(bound) > 1
        for frame in reversed(frames):
            inside = _inside(frame, name, attribute)
            inside = [
                binding for binding in inside if binding.calls or not another_name
            ]
            if inside:
                line = frame.line
                return _frame(frame.file, min(inside, key=lambda s: _distance(s, line)))
        if attribute and (site := _only_binding(name, frames)):
            return site
    return None


def _only_binding(attribute: str, frames: Sequence[Frame]) -> Frame | None:
    """The line that binds this attribute, if the files of the frames have only one."""
    files = dict.fromkeys(frame.file for frame in frames)
    sites = {
        _frame(file, binding)
        for file in files
        for binding in _read(file)[0]
        if binding.attribute and binding.name == attribute
    }
    return sites.pop() if len(sites) == 1 else None


def _inside(frame: Frame, name: str, attribute: bool) -> list[_Binding]:
    """The statements that bind a name in the function of a frame."""
    bindings, functions = _read(frame.file)
    function = max(f for f in functions if f[0] <= frame.line <= f[1])
    return [
        binding
        for binding in bindings
        if (binding.name, binding.attribute, binding.function)
        == (name, attribute, function)
    ]


def _bound(path: str) -> list[tuple[str, bool]]:
    """The names in a path, last first: `keys`, `past`, `self` of `self.past[3].keys`.

    Each comes with whether it is an attribute.
    """
    if path.endswith(".grad"):
        return []
    first, *others = re.sub(r"\[[^\]]*\]", "", path).split(".")
    return [*((name, True) for name in reversed(others)), (first, False)]


def _distance(binding: _Binding, line: int) -> tuple[bool, int]:
    """The sort key of a statement: those that end before the line come last."""
    return binding.last < line, abs(binding.first - line)


def _frame(file: str, binding: _Binding) -> Frame:
    code = blame.source_line(file, binding.first).strip()
    return Frame(file, binding.first, "", code)


@functools.lru_cache(maxsize=64)
def _read(file: str) -> tuple[tuple[_Binding, ...], frozenset[tuple[int, int]]]:
    """The binding statements of a file, and its functions' first and last lines."""
    tree = blame.tree_of(file)
    functions = {_lines(n) for n in ast.walk(tree) if isinstance(n, _FUNCTIONS)}
    return tuple(_walk(tree, _FILE)), frozenset({_FILE, *functions})


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
    return first, function.end_lineno or function.lineno


def _walk(node: ast.AST, function: tuple[int, int]) -> Iterator[_Binding]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            lines = child.lineno, child.end_lineno or child.lineno
            for name, attribute in _targets(child):
                calls = any(isinstance(part, ast.Call) for part in ast.walk(child))
                yield _Binding(
                    name=name,
                    attribute=attribute,
                    first=lines[0],
                    last=lines[1],
                    function=function,
                    calls=calls,
                )
        inner = _lines(child) if isinstance(child, _FUNCTIONS) else function
        yield from _walk(child, inner)


def _is_empty(value: ast.expr | None) -> bool:
    """Whether the value is a constant or an empty container, so stores no tensor."""
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
        if isinstance(called, ast.Attribute) and called.attr in _ADDING_METHODS:
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
