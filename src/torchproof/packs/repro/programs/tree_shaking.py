"""Removes the parts of a module that its entry points do not reach."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

from torchproof.packs.repro.programs.scopes import (
    MODULE,
    Names,
    mentioned_names,
    parameters,
)

# Packages that a repro may import: they come with Python or with torch.
AVAILABLE = frozenset(sys.stdlib_module_names) | {"torch", "functorch", "numpy"}
# Calls that change only what a program logs.
_LOGGING_SETUP = (
    "logging.basicConfig",
    "warnings.filterwarnings",
    "warnings.simplefilter",
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef


def shake(tree: ast.Module, roots: Iterable[str]) -> ast.Module:
    """Keeps the statements and methods that the roots need; drops annotations."""
    tree = without_annotations(tree)
    tree.body = [node for node in tree.body if not _is_irrelevant(node)]
    needed = set(roots)
    while True:
        _keep_reachable(tree, needed)
        if not _drop_unused_methods(tree):
            return tree


def foreign_packages(tree: ast.Module) -> list[str]:
    """Returns the imported packages that a repro cannot rely on."""
    packages = set()
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:  # the program works without an optional import
            continue
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or ".").partition(".")[0])
    return sorted(packages - AVAILABLE)


def _keep_reachable(tree: ast.Module, roots: set[str]) -> None:
    """Keeps what the roots reach, and statements with effects on that alone."""
    uses = _uses(tree)
    names = set(roots)
    body = list(tree.body)
    reachable: set[int] = set()
    while True:
        reached = [
            node
            for node in body
            if id(node) not in reachable and uses[id(node)][0] & names
        ]
        if not reached:
            break
        for node in reached:
            reachable.add(id(node))
            names |= uses[id(node)][1]
    defined = set().union(*(uses[i][0] for i in reachable)) if reachable else set()
    for node in body:
        bound, used = uses[id(node)]
        if not bound and used <= defined | names:
            reachable.add(id(node))
    for node in body:  # the imports that those statements need
        if id(node) in reachable:
            names |= uses[id(node)][1]
    tree.body = [
        node
        for node in body
        if id(node) in reachable or (_is_import(node) and uses[id(node)][0] & names)
    ]
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [a for a in node.names if _bound_by(a) in names]


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _uses(tree: ast.Module) -> dict[int, tuple[set[str], set[str]]]:
    """Returns for each statement the globals that it binds and those that it uses."""
    names = Names(tree)
    owner: dict[int, int] = {
        id(inner): id(node) for node in tree.body for inner in ast.walk(node)
    }
    uses: dict[int, tuple[set[str], set[str]]] = {
        id(node): (set(), set()) for node in tree.body
    }
    for occurrence in names.occurrences:
        binding = names.binding(occurrence)
        if binding is None or binding.scope != MODULE:
            continue
        bound, used = uses[owner[id(occurrence.node)]]
        used.add(binding.name)
        if occurrence.scope.number == MODULE and not _is_read(occurrence.node):
            bound.add(binding.name)
    return uses


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _drop_unused_methods(tree: ast.Module) -> bool:
    """Removes methods that nothing names; returns whether there were any."""
    dropped = False
    mentioned = {name for node in tree.body for name in mentioned_names(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        kept = [m for m in node.body if not _is_unused(m, mentioned)]
        if len(kept) < len(node.body):
            node.body = kept or [ast.Pass()]
            dropped = True
    return dropped


def _is_unused(member: ast.stmt, mentioned: set[str]) -> bool:
    """Whether no code names a method; `forward` and `__call__` need no name."""
    if not isinstance(member, _Definition) or member.name in {"forward", "backward"}:
        return False
    special = member.name.startswith("__") and member.name.endswith("__")
    return not special and member.name not in mentioned and not member.decorator_list


def _is_irrelevant(node: ast.stmt) -> bool:
    """Whether a statement serves readers, type checkers, logging or a main program."""
    if isinstance(node, ast.Expr):
        call = node.value.func if isinstance(node.value, ast.Call) else None
        return isinstance(node.value, ast.Constant) or (
            call is not None and ast.unparse(call) in _LOGGING_SETUP
        )
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        return "__name__" in test or test.endswith("TYPE_CHECKING")
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.Pass)


def without_annotations(tree: ast.Module) -> ast.Module:
    """Removes annotations and docstrings; dataclass fields get the type object."""
    _AnnotationRemover().visit(tree)
    return ast.fix_missing_locations(tree)


class _AnnotationRemover(ast.NodeTransformer):
    def __init__(self) -> None:
        self._in_dataclass = False  # where annotations define the fields

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before = self._in_dataclass
        marks = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases)))
        self._in_dataclass = any(
            word in marks for word in ("dataclass", "NamedTuple", "TypedDict", "Output")
        )
        node.bases = [b for b in node.bases if not _is_generic(b)]
        self.generic_visit(node)
        self._in_dataclass = before
        return _without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before = self._in_dataclass
        self._in_dataclass = False
        node.returns = None
        for argument in parameters(node):
            argument.annotation = None
        self.generic_visit(node)
        self._in_dataclass = before
        return _without_docstring(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if self._in_dataclass:
            if "ClassVar" not in ast.unparse(node.annotation):
                node.annotation = ast.Name("object", ast.Load())
            return node
        if node.value is None:
            return None
        return ast.Assign([node.target], node.value, lineno=0)


def _is_generic(base: ast.expr) -> bool:
    return ast.unparse(base).partition("[")[0] in {"Generic", "Protocol"}


def _without_docstring(node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
    """Removes the docstring; an empty body becomes `pass`."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    node.body = node.body or [ast.Pass()]
    return node


def without_dead_stores(tree: ast.Module) -> ast.Module:
    """Removes assignments in functions to names and attributes that nothing reads."""
    while True:
        read = set(_read(tree))
        dropped = False
        for node in ast.walk(tree):
            if isinstance(node, _Definition):
                kept = [each for each in node.body if not _is_dead(each, read)]
                dropped |= len(kept) < len(node.body)
                node.body = kept or [ast.Pass()]
        if not dropped:
            return tree


def _read(tree: ast.AST) -> Iterator[str]:
    """Yields names and attributes that are read, or that other functions may read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f".{node.value}"
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


def _is_dead(node: ast.stmt, read: set[str]) -> bool:
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    if isinstance(target, ast.Attribute):  # setting one of torch's may configure it
        return f".{target.attr}" not in read and _root(target) not in {"torch", "self"}
    return isinstance(target, ast.Name) and target.id not in read


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return ast.unparse(node)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield node
