"""Finds what each name of a file is bound to, scope by scope."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from torchproof.checking.static.kinds import words
from torchproof.checking.static.source import Definition, Source

Scope = ast.AST
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module, ast.ClassDef)
# Methods of a module that return the module itself.
_SAME = words("to cuda cpu eval train half float bfloat16 double requires_grad_")
_UNREADABLE = ast.Constant(value=None)  # the value of a loop variable or a parameter


class Bindings:
    """Names and attributes of `self`, with the expressions assigned to them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._assignments: dict[Scope, dict[str, list[tuple[int, ast.AST]]]] = {}
        for node in source.nodes:
            for target, value in _bound(node):
                self._bind(target, value, node)

    def scope(self, node: ast.AST) -> Scope:
        """The function, class or module that contains a node."""
        at = self.source.parents.get(node)
        while at is not None and not isinstance(at, _SCOPES):
            at = self.source.parents.get(at)
        return at if at is not None else self.source.tree

    def meaning(self, node: ast.expr) -> ast.AST | None:
        """The expression or definition that a name refers to where it is used."""
        name = self.source.dotted(node) if _is_own(node) else None
        if isinstance(node, ast.Name):
            name = node.id
        if name is None:
            return None
        start = self._start(node)
        for scope in self._scopes(start):
            assignments = self._assignments.get(scope, {}).get(name)
            in_class = isinstance(scope, ast.ClassDef) and "." not in name
            if assignments and not in_class:
                here = scope is start and "." not in name
                return _last(assignments, node.lineno if here else None)
        return None

    def origin(self, node: ast.AST | None) -> ast.AST | None:
        """The call or definition behind a name, through `.to(...)` and `.eval()`."""
        for _ in range(4):
            if isinstance(node, ast.Name | ast.Attribute):
                node = self.meaning(node)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _SAME
            ):
                node = node.func.value
            else:
                return node
        return None

    def owner(self, name: ast.Name) -> Scope | None:
        """The scope that binds a name at the place where it is used."""
        scopes = self._scopes(self._start(name))
        return next(
            (s for s in scopes if name.id in self._assignments.get(s, {})), None
        )

    def _scopes(self, scope: Scope) -> Iterator[Scope]:
        """A scope and those around it."""
        yield scope
        while scope is not self.source.tree:
            scope = self.scope(scope)
            yield scope

    def _start(self, node: ast.AST) -> Scope:
        scope = self.scope(node)
        return self._class(scope) if _is_own(node) else scope

    def _class(self, scope: Scope) -> Scope:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = self.scope(scope)
        return scope

    def _bind(self, target: ast.expr | str, value: ast.AST, node: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            same = isinstance(value, ast.Tuple | ast.List)
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for index, each in enumerate(target.elts):
                paired = same and len(parts) == len(target.elts)
                self._bind(each, parts[index] if paired else _UNREADABLE, node)
            return
        if isinstance(target, str):
            name, scope = target, self.scope(node)
        elif isinstance(target, ast.Name):
            name, scope = target.id, self.scope(target)
        elif _is_own(target):
            name, scope = self.source.dotted(target) or "", self._start(target)
        else:
            return
        line = getattr(node, "lineno", 0)
        self._assignments.setdefault(scope, {}).setdefault(name, []).append(
            (line, value)
        )


@functools.lru_cache(maxsize=4)
def of(source: Source) -> Bindings:
    return Bindings(source)


def _bound(node: ast.AST) -> Iterator[tuple[ast.expr | str, ast.AST]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, _UNREADABLE
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, _UNREADABLE
    elif isinstance(node, Definition | ast.ClassDef):
        yield node.name, node
    elif isinstance(node, ast.arg):
        yield node.arg, _UNREADABLE


def _is_own(node: ast.AST) -> bool:
    """Whether a node is `self.name`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _last(assignments: list[tuple[int, ast.AST]], line: int | None) -> ast.AST | None:
    """The last value assigned before a line; None if the source does not show it."""
    before = [value for at, value in assignments if line is None or at < line]
    value_in_force = before[-1] if before else None
    return None if value_in_force is _UNREADABLE else value_in_force
