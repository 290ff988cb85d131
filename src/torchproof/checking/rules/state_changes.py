"""The statement that changes what a guard checks: a history, a cache, a counter."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchproof.checking.rules.recompile_groups import RecompileGroup
from torchproof.checking.rules.rule import expression_of
from torchproof.records import (
    Frame,
    Guard,
    cells,
    shown_briefly,
    tree_of,
)

_ADDING = {"append", "extend", "insert", "add", "update", "appendleft", "setdefault"}
_JOINING = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "pad"}
_NUMBERS = {"attribute", "value", "global"}
_CHANGING = {*_NUMBERS, "length", "keys", "size"}
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Change:
    """A statement that changes what a guard checks.

    `inside`: it is in the compiled function. `is_read`: its function also reads it.
    `is_bounded`: each call does the same, to one key or to what it has emptied.
    """

    frame: Frame
    inside: bool
    is_read: bool
    is_bounded: bool

    def text(self, group: RecompileGroup) -> str:
        """The statement for use in a sentence, with its place unless that is known."""
        code, place = f"`{expression_of(self.frame, group.width)}`", group.frame
        own = (self.frame.file, self.frame.line)
        if place is not None and (place.file, place.line) == own:
            return code
        return f"{code} at {cells.place(shown_briefly(own[0]), own[1])}"


def change_of(group: RecompileGroup) -> Change | None:
    """The statement that changes what the guard of a group checks, if it is found."""
    guard = group.first.callers_guard
    if guard is None or guard.cause not in _CHANGING:
        return None
    own = [f for f in (group.frame, group.first.function) if f is not None]
    call = group.first.entry_call
    for file in dict.fromkeys([f.file for f in own] + ([call.file] if call else [])):
        lines = {frame.line for frame in own if frame.file == file}
        tree = tree_of(file)

        def is_inside(
            node: ast.AST, tree: ast.AST = tree, at: set[int] = lines
        ) -> bool:
            function = _around(tree, node)
            return function is not None and any(_covers(function, n) for n in at)

        for node in _statements(tree, guard, lines):
            empties = (n for n in ast.walk(tree) if _empties(n, guard.source))
            code = ast.unparse(node).split("\n")[0]
            return Change(
                Frame(file, node.lineno, "", code),
                is_inside(node),
                _reads(_around(tree, node), node, guard.source),
                _has_one_key(node) or any(map(is_inside, empties)),
            )
    return None


def _has_one_key(node: ast.stmt) -> bool:
    """Whether a statement sets one item: `seen["relu"] = y`."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)


def _empties(node: ast.AST, source: str) -> bool:
    """Whether a statement takes everything out of a container."""
    if isinstance(node, ast.Assign):
        is_new = ast.unparse(node.value) in {"[]", "{}", "list()", "dict()", "set()"}
        return is_new and source in [ast.unparse(target) for target in node.targets]
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == f"{source}.clear"


def _statements(tree: ast.Module, guard: Guard, lines: set[int]) -> Iterator[ast.stmt]:
    """Those that change a source; `self` is that of the class at one of the lines."""
    source, is_number = guard.source, guard.cause in _NUMBERS
    scopes: Sequence[ast.AST] = [tree]
    if source.startswith("self"):
        classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
        scopes = [c for c in classes if any(_covers(c, line) for line in lines)][-1:]
    for scope in scopes:
        for node in ast.walk(scope):
            if isinstance(node, ast.stmt) and _changes(node, source, is_number):
                yield node


def _covers(node: ast.AST, line: int) -> bool:
    first: int = getattr(node, "lineno", 0)
    return first <= line <= (getattr(node, "end_lineno", None) or first)


def _around(scope: ast.AST, statement: ast.AST) -> ast.AST | None:
    """The innermost function around a statement."""
    functions = [n for n in ast.walk(scope) if isinstance(n, _FUNCTIONS)]
    around = [n for n in functions if _covers(n, statement.lineno)]  # type: ignore[attr-defined]
    return around[-1] if around else None


def _reads(function: ast.AST | None, statement: ast.stmt, source: str) -> bool:
    """Whether a function also uses, elsewhere, what the statement changes."""
    own = set(ast.walk(statement))
    return function is None or any(
        isinstance(node, ast.expr) and ast.unparse(node) == source
        for node in ast.walk(function)
        if node not in own
    )


def _changes(node: ast.stmt, source: str, is_number: bool) -> bool:
    """Whether a statement computes a number from itself, or adds to a container.

    Arithmetic on a tensor keeps its size.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        adds = isinstance(called, ast.Attribute) and called.attr in _ADDING
        return adds and ast.unparse(called.value) == source  # type: ignore[attr-defined]
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) == source and is_number
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and not is_number:
            return ast.unparse(target.value) == source
        same = ast.unparse(target) == source
        return same and _extends(node.value, source, is_number)
    return False


def _extends(value: ast.expr, source: str, is_number: bool) -> bool:
    """Whether an expression is what it was before, with something added."""
    inner = [ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.expr)]
    if source not in inner:
        return False
    if isinstance(value, ast.BinOp):
        return is_number or isinstance(value.right, ast.List | ast.Tuple)
    called = value.func if isinstance(value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else ""
    return name in _JOINING or isinstance(value, ast.List | ast.Tuple)
