"""Resolves the names of a module to their scopes, so that they can be renamed.

Takes a parsed module, returns each occurrence of a name with the scope that binds it.
Attributes, keyword arguments and strings are not names in this sense. Python's
`symtable` does not do: it has no link to the nodes, and since 3.12 it merges
comprehensions into the function around them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Function = _Definition | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(eq=False)
class Scope:
    parent: Scope | None = None
    kind: str = "function"  # or "module", "class", "comprehension"
    bound: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)  # declared by `global`
    nonlocals: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a name; `index` is its position in `global a, b`."""

    node: ast.AST
    name: str
    scope: Scope
    binds: bool = False
    index: int = 0

    def write(self, name: str) -> None:
        node = self.node
        if isinstance(node, ast.Name):
            node.id = name
        elif isinstance(node, ast.arg):
            node.arg = name
        elif isinstance(node, ast.Global | ast.Nonlocal):
            node.names[self.index] = name
        elif isinstance(node, ast.MatchMapping):
            node.rest = name
        elif not isinstance(node, ast.alias):
            node.name = name  # type: ignore[attr-defined]
        elif "." not in node.name or node.asname:
            node.asname = name if name != node.name else None


class Names(ast.NodeVisitor):
    """All occurrences of names in a module, resolved."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = self._scope = Scope(kind="module")
        self.occurrences: list[Occurrence] = []
        self.visit(tree)

    def binding(self, occurrence: Occurrence) -> Scope | None:
        """Returns the scope that binds a name; None for a builtin or undefined one."""
        scope: Scope | None = occurrence.scope
        name = occurrence.name
        while scope is not None:
            if name in scope.globals:
                scope = self.module
            # Only the statements of a class body see its names.
            is_visible = scope.kind != "class" or scope is occurrence.scope
            if name in scope.bound and is_visible:
                return scope
            scope = scope.parent
        return None

    def globals(self) -> list[Occurrence]:
        """Returns the occurrences of names that the module binds."""
        return [o for o in self.occurrences if self.binding(o) is self.module]

    def undefined(self) -> set[str]:
        """Returns names that neither the module nor Python defines."""
        unbound = {o.name for o in self.occurrences if self.binding(o) is None}
        return {n for n in unbound if not hasattr(builtins, n)} - {
            "__file__",
            "__class__",
        }

    def rename_globals(self, names: Mapping[str, str]) -> None:
        for occurrence in self.globals():
            if occurrence.name in names:
                occurrence.write(names[occurrence.name])

    # -- visiting ----------------------------------------------------------------------

    def _add(self, node: ast.AST, name: str, *, binds: bool = True) -> None:
        scope = self._scope
        self.occurrences.append(Occurrence(node, name, scope, binds))
        if binds and name not in scope.globals | scope.nonlocals:
            scope.bound.add(name)

    @contextlib.contextmanager
    def _inside(self, kind: str) -> Iterator[None]:
        self._scope = Scope(self._scope, kind)
        yield
        assert self._scope.parent is not None
        self._scope = self._scope.parent

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, _Function):
            self._visit_function(node)
        elif isinstance(node, _Comprehension):
            self._visit_comprehension(node)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            if node.name:
                self._add(node, node.name)
            self.generic_visit(node)
        else:
            super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._add(node, node.id, binds=not isinstance(node.ctx, ast.Load))

    def visit_alias(self, node: ast.alias) -> None:
        self._add(node, bound_by(node))

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._add(node, node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.globals |= set(node.names)
        self.module.bound |= set(node.names)
        self._declare(node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.nonlocals |= set(node.names)
        self._declare(node)

    def _declare(self, node: ast.Global | ast.Nonlocal) -> None:
        self.occurrences += [
            Occurrence(node, name, self._scope, index=index)
            for index, name in enumerate(node.names)
        ]

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        inner = self._scope
        while self._scope.kind == "comprehension" and self._scope.parent:
            self._scope = self._scope.parent
        self.visit(node.target)
        self._scope = inner
        self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._add(node, node.name)
        self._visit_all((*node.decorator_list, *node.bases, *node.keywords))
        with self._inside("class"):
            self._visit_all(node.body)

    def _visit_function(self, node: _Function) -> None:
        if isinstance(node, _Definition):
            self._add(node, node.name)
            self._visit_all((*node.decorator_list, node.returns))
        arguments = parameters(node)
        self._visit_all((*node.args.defaults, *node.args.kw_defaults))
        self._visit_all(argument.annotation for argument in arguments)
        with self._inside("function"):
            for argument in arguments:
                self._add(argument, argument.arg)
            self._visit_all(node.body if isinstance(node.body, list) else [node.body])

    def _visit_comprehension(self, node: _Comprehension) -> None:
        self.visit(node.generators[0].iter)
        with self._inside("comprehension"):
            for number, generator in enumerate(node.generators):
                outer = None if number == 0 else generator.iter
                self._visit_all((outer, generator.target, *generator.ifs))
            if isinstance(node, ast.DictComp):
                self._visit_all((node.key, node.value))
            else:
                self.visit(node.elt)


def bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


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
