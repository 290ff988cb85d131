"""Which scope each name in a piece of source belongs to, so that it can be renamed.

Comes in: a parsed module. Goes out: every place that spells a name, with the scope that
binds it. Attributes, keyword arguments and texts are no names in this sense.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["module", "function", "class", "comprehension"]
MODULE = 0

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Binding:
    """A name and the number of the scope that binds it; MODULE is the file itself."""

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
class Spelling:
    """One place that spells a name. `index` is its place in `global a, b`."""

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
    """The spellings of a module, resolved."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: list[Scope] = []
        self.spellings: list[Spelling] = []
        module = self._scope("module", None)
        for statement in tree.body:
            self._visit(statement, module)

    def binding(self, spelling: Spelling) -> Binding | None:
        """Who binds it; None for a builtin, or where nothing does."""
        scope: Scope | None = spelling.scope
        name = spelling.name
        while scope is not None:
            if scope.outer.get(name) == "global":
                scope = self.scopes[MODULE]
                break
            own = name in scope.bound and name not in scope.outer
            # A class body is seen by its own statements alone.
            if own and (scope.kind != "class" or scope is spelling.scope):
                break
            scope = scope.parent
        if scope is None or name not in scope.bound | set(scope.outer):
            return None
        return Binding(scope.number, name)

    def undefined(self) -> set[str]:
        """Names that are read and that neither the source nor Python defines."""
        return {
            spelling.name
            for spelling in self.spellings
            if self.binding(spelling) is None and not hasattr(builtins, spelling.name)
        } - {"__file__", "__class__"}

    def rename(self, name_for: Callable[[Binding], str | None]) -> None:
        bindings = [(spelling, self.binding(spelling)) for spelling in self.spellings]
        for spelling, binding in bindings:
            if binding is not None and (name := name_for(binding)) is not None:
                spelling.write(name)

    def _scope(self, kind: Kind, parent: Scope | None) -> Scope:
        scope = Scope(len(self.scopes), kind, parent)
        self.scopes.append(scope)
        return scope

    def _spell(self, node: ast.AST, name: str, scope: Scope, *, binds: bool) -> None:
        self.spellings.append(Spelling(node, name, scope))
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
            home = scope
            while home.kind == "comprehension" and home.parent:
                home = home.parent
            self._spell(node.target, node.target.id, home, binds=True)
        else:
            self._visit_plain(node, scope)
            for child in ast.iter_child_nodes(node):
                self._visit(child, scope)

    def _visit_plain(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            binds = not isinstance(node.ctx, ast.Load)
            self._spell(node, node.id, scope, binds=binds)
        elif isinstance(node, ast.alias):
            name = node.asname or node.name.partition(".")[0]
            self._spell(node, name, scope, binds=True)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            if node.name:
                self._spell(node, node.name, scope, binds=True)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._spell(node, node.rest, scope, binds=True)

    def _declare(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        kind: Literal["global", "nonlocal"]
        kind = "global" if isinstance(node, ast.Global) else "nonlocal"
        for index, name in enumerate(node.names):
            scope.outer[name] = kind
            self.spellings.append(Spelling(node, name, scope, index))
            if kind == "global":
                self.scopes[MODULE].bound.add(name)

    def _visit_function(self, node: _Function, scope: Scope) -> None:
        if not isinstance(node, ast.Lambda):
            self._spell(node, node.name, scope, binds=True)
            for outer in (*node.decorator_list, *filter(None, [node.returns])):
                self._visit(outer, scope)
        given = node.args
        for default in (*given.defaults, *filter(None, given.kw_defaults)):
            self._visit(default, scope)
        inner = self._scope("function", scope)
        for argument in parameters(node):
            if argument.annotation:
                self._visit(argument.annotation, scope)
            self._spell(argument, argument.arg, inner, binds=True)
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in body:
            self._visit(child, inner)

    def _visit_class(self, node: ast.ClassDef, scope: Scope) -> None:
        self._spell(node, node.name, scope, binds=True)
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
    """All parameters of a function, in the order they are written."""
    given = node.args
    star = [given.vararg] if given.vararg else []
    stars = [given.kwarg] if given.kwarg else []
    return [*given.posonlyargs, *given.args, *star, *given.kwonlyargs, *stars]


def spelled(node: ast.AST) -> Iterator[str]:
    """Every name, attribute, keyword and text in a piece of source, unresolved."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.keyword) and child.arg:
            yield child.arg
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def renamed(tree: ast.Module, names: Mapping[Binding, str]) -> None:
    """The bindings of `names` under their other names, in place."""
    Names(tree).rename(names.get)
