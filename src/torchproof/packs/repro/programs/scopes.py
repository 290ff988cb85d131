"""Resolves the names of a module to their scopes, so that they can be renamed.

Takes a parsed module, returns each occurrence of a name with the scope that binds it.
Attributes, keyword arguments and strings are not names in this sense.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["module", "function", "class", "comprehension"]
MODULE = 0

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Binding:
    """A name and the number of the scope that binds it; MODULE is the module scope."""

    scope: int
    name: str


@dataclass
class Scope:
    number: int
    kind: Kind
    parent: Scope | None
    bound: set[str] = field(default_factory=set)
    outer: dict[str, Literal["global", "nonlocal"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a name; `index` is its position in `global a, b`."""

    node: ast.AST
    name: str
    scope: Scope
    index: int = 0

    def write(self, name: str) -> None:
        node = self.node
        if isinstance(node, ast.Name):
            node.id = name
        elif isinstance(node, ast.arg):
            node.arg = name
        elif isinstance(node, ast.Global | ast.Nonlocal):
            node.names[self.index] = name
        elif isinstance(node, ast.alias):
            if "." not in node.name or node.asname:
                node.asname = name if name != node.name else None
        elif isinstance(node, ast.MatchMapping):
            node.rest = name
        else:
            node.name = name  # type: ignore[attr-defined]


class Names:
    """All occurrences of names in a module, resolved."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: list[Scope] = []
        self.occurrences: list[Occurrence] = []
        module = self._scope("module", None)
        for statement in tree.body:
            self._visit(statement, module)

    def binding(self, occurrence: Occurrence) -> Binding | None:
        """Returns the binding of a name; None if it is a builtin or undefined."""
        scope: Scope | None = occurrence.scope
        name = occurrence.name
        while scope is not None:
            if scope.outer.get(name) == "global":
                scope = self.scopes[MODULE]
                break
            is_bound = name in scope.bound and name not in scope.outer
            # Only the statements of a class body see its names.
            if is_bound and (scope.kind != "class" or scope is occurrence.scope):
                break
            scope = scope.parent
        if scope is None or name not in scope.bound | set(scope.outer):
            return None
        return Binding(scope.number, name)

    def undefined(self) -> set[str]:
        """Returns names that neither the module nor Python defines."""
        return {
            occurrence.name
            for occurrence in self.occurrences
            if self.binding(occurrence) is None
            and not hasattr(builtins, occurrence.name)
        } - {"__file__", "__class__"}

    def rename(self, name_for: Callable[[Binding], str | None]) -> None:
        bindings = [
            (occurrence, self.binding(occurrence)) for occurrence in self.occurrences
        ]
        for occurrence, binding in bindings:
            if binding is not None and (name := name_for(binding)) is not None:
                occurrence.write(name)

    def _scope(self, kind: Kind, parent: Scope | None) -> Scope:
        scope = Scope(len(self.scopes), kind, parent)
        self.scopes.append(scope)
        return scope

    def _add(self, node: ast.AST, name: str, scope: Scope, *, binds: bool) -> None:
        self.occurrences.append(Occurrence(node, name, scope))
        if binds:
            scope.bound.add(name)
            if scope.outer.get(name) == "global":
                self.scopes[MODULE].bound.add(name)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, _Function):
            self._visit_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._visit_class(node, scope)
        elif isinstance(node, _Comprehension):
            self._visit_comprehension(node, scope)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self._declare(node, scope)
        elif isinstance(node, ast.NamedExpr):
            self._visit(node.value, scope)
            target = scope
            while target.kind == "comprehension" and target.parent:
                target = target.parent
            self._add(node.target, node.target.id, target, binds=True)
        else:
            self._visit_plain(node, scope)
            for child in ast.iter_child_nodes(node):
                self._visit(child, scope)

    def _visit_plain(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            binds = not isinstance(node.ctx, ast.Load)
            self._add(node, node.id, scope, binds=binds)
        elif isinstance(node, ast.alias):
            name = node.asname or node.name.partition(".")[0]
            self._add(node, name, scope, binds=True)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            if node.name:
                self._add(node, node.name, scope, binds=True)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._add(node, node.rest, scope, binds=True)

    def _declare(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        kind: Literal["global", "nonlocal"]
        kind = "global" if isinstance(node, ast.Global) else "nonlocal"
        for index, name in enumerate(node.names):
            scope.outer[name] = kind
            self.occurrences.append(Occurrence(node, name, scope, index))
            if kind == "global":
                self.scopes[MODULE].bound.add(name)

    def _visit_function(self, node: _Function, scope: Scope) -> None:
        if not isinstance(node, ast.Lambda):
            self._add(node, node.name, scope, binds=True)
            for outer in (*node.decorator_list, *filter(None, [node.returns])):
                self._visit(outer, scope)
        arguments = node.args
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self._visit(default, scope)
        inner = self._scope("function", scope)
        for argument in parameters(node):
            if argument.annotation:
                self._visit(argument.annotation, scope)
            self._add(argument, argument.arg, inner, binds=True)
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in body:
            self._visit(child, inner)

    def _visit_class(self, node: ast.ClassDef, scope: Scope) -> None:
        self._add(node, node.name, scope, binds=True)
        for outer in (*node.decorator_list, *node.bases, *node.keywords):
            self._visit(outer, scope)
        inner = self._scope("class", scope)
        for child in node.body:
            self._visit(child, inner)

    def _visit_comprehension(self, node: _Comprehension, scope: Scope) -> None:
        inner = self._scope("comprehension", scope)
        for number, generator in enumerate(node.generators):
            self._visit(generator.iter, inner if number else scope)
            self._visit(generator.target, inner)
            for condition in generator.ifs:
                self._visit(condition, inner)
        if isinstance(node, ast.DictComp):
            self._visit(node.key, inner)
            self._visit(node.value, inner)
        else:
            self._visit(node.elt, inner)


def parameters(node: _Function) -> list[ast.arg]:
    """Returns all parameters of a function in source order."""
    arguments = node.args
    parts = (
        *arguments.posonlyargs,
        *arguments.args,
        arguments.vararg,
        *arguments.kwonlyargs,
        arguments.kwarg,
    )
    return [part for part in parts if part is not None]


def mentioned_names(node: ast.AST) -> Iterator[str]:
    """Yields every name, attribute, keyword and string in a piece of source."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.keyword) and child.arg:
            yield child.arg
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
