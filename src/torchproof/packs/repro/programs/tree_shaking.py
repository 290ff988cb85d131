"""Removes the parts of a module that its entry points do not reach."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchproof.packs.repro.programs.scopes import (
    Names,
    bound_by,
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
# Bases that read neither the annotations nor the docstring of a subclass.
_PLAIN_BASES = {"object", "Module", "ABC", "Function"}
_CALLED_BY_TORCH = {"forward", "backward", "setup_context", "vmap", "jvp"}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Import = ast.Import | ast.ImportFrom


def shake(tree: ast.Module, roots: Iterable[str]) -> ast.Module:
    """Keeps the statements and methods that the roots need.

    Annotations and docstrings go too, where no decorator or base class can read them.
    """
    tree = without_annotations(tree)
    tree.body = [node for node in tree.body if not _is_irrelevant(node)]
    while True:
        _keep_reachable(tree, set(roots))
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


# -- statements ------------------------------------------------------------------------


@dataclass
class _Globals:
    """The globals that a statement binds and those that it uses."""

    bound: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


def _keep_reachable(tree: ast.Module, needed: set[str]) -> None:
    """Keeps what binds a needed name, and statements with effects on that alone.

    `needed` grows with the names that kept statements use.
    """
    statements = list(zip(tree.body, _globals_of(tree), strict=True))
    imported = {
        name
        for node, names in statements
        if isinstance(node, _Import) and not foreign_packages(ast.Module([node], []))
        for name in names.bound
    }
    kept: set[int] = set()
    while True:
        own = needed - imported
        reading = {
            n for _, names in statements if names.used & own for n in names.bound
        }
        more = [
            (place, names)
            for place, (node, names) in enumerate(statements)
            if place not in kept
            and (
                names.bound & needed
                or names.used <= needed
                or _registers(node, names, needed | imported)
                or _is_decorated(node, reading)
            )
        ]
        if not more:
            break
        for place, names in more:
            kept.add(place)
            needed |= names.used
    tree.body = [tree.body[place] for place in sorted(kept)]
    for node in tree.body:
        if isinstance(node, _Import):
            node.names = [a for a in node.names if bound_by(a) in needed]


def _globals_of(tree: ast.Module) -> list[_Globals]:
    names = Names(tree)
    found = [_Globals() for _ in tree.body]
    owner = {
        id(inner): one
        for node, one in zip(tree.body, found, strict=True)
        for inner in ast.walk(node)
    }
    for occurrence in names.globals():
        one = owner[id(occurrence.node)]
        one.used.add(occurrence.name)
        if occurrence.binds and occurrence.scope is names.module:
            one.bound.add(occurrence.name)
    return found


def _registers(node: ast.stmt, names: _Globals, available: set[str]) -> bool:
    """Whether a statement registers something with torch or with a kept object."""
    if isinstance(node, _Import):
        return "__future__" in ast.unparse(node)
    match node:
        case ast.Expr(value=ast.Call(func=called)):  # `sell.register_autograd(back)`
            calls: list[ast.expr] = [called]
        case ast.FunctionDef(decorator_list=calls) | ast.ClassDef(decorator_list=calls):
            pass
        case ast.Assign(value=value):  # `torch.library.Library("shop", "DEF")`
            calls = [value] if "torch.library" in ast.unparse(value) else []
        case _:
            return False
    module = ast.Module([ast.Expr(each) for each in calls], [])
    is_registering = re.search(r"register|\bimpl|library", ast.unparse(module))
    used = {occurrence.name for occurrence in Names(module).occurrences} & names.used
    return is_registering is not None and used <= available


def _is_decorated(node: ast.stmt, names: set[str]) -> bool:
    """Whether one of the named functions decorates a definition."""
    decorators = getattr(node, "decorator_list", ())
    return any(name in names for each in decorators for name in mentioned_names(each))


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


# -- methods and annotations -----------------------------------------------------------


def _plain_classes(tree: ast.Module) -> list[ast.ClassDef]:
    """Returns the classes of which neither decorator nor base reads the members."""
    names: set[str] = set(_PLAIN_BASES)
    plain = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases <= names and not node.decorator_list and not node.keywords:
                names.add(node.name)
                plain.append(node)
    return plain


def _drop_unused_methods(tree: ast.Module) -> bool:
    """Removes methods that nothing names; returns whether there were any."""
    dropped = False
    mentioned = set(mentioned_names(tree)) | _CALLED_BY_TORCH
    for node in _plain_classes(tree):
        members = [m for m in node.body if not _is_unused(m, mentioned)]
        dropped |= len(members) < len(node.body)
        node.body = members or [ast.Pass()]
    return dropped


def _is_unused(member: ast.stmt, mentioned: set[str]) -> bool:
    if not isinstance(member, _Definition) or member.decorator_list:
        return False
    special = member.name.startswith("__") and member.name.endswith("__")
    return not special and member.name not in mentioned


def without_annotations(tree: ast.Module) -> ast.Module:
    """Removes annotations and docstrings that no decorator, base or call reads."""
    passed = {
        name
        for node in tree.body
        if not isinstance(node, _Definition | ast.ClassDef)
        for name in mentioned_names(node)
    }
    _AnnotationRemover(_plain_classes(tree), passed).visit(tree)
    return ast.fix_missing_locations(tree)


class _AnnotationRemover(ast.NodeTransformer):
    def __init__(self, plain: list[ast.ClassDef], passed: set[str]) -> None:
        self._plain = plain
        self._passed = passed  # to calls at module level, which may read them
        self._is_read = False  # inside a class whose members something reads

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        is_read = node not in self._plain
        return self._visit_members(node, is_read=is_read, documented=is_read)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        is_read = self._is_read or node.decorator_list or node.name in self._passed
        if not is_read:
            node.returns = None
            for argument in parameters(node):
                argument.annotation = None
        # Python does not evaluate the annotations of local variables.
        return self._visit_members(node, is_read=False, documented=bool(is_read))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self._is_read:
            return node
        if node.value is None:
            return None
        return ast.Assign([node.target], node.value, lineno=0)

    def _visit_members(
        self,
        node: ast.ClassDef | ast.FunctionDef,
        *,
        is_read: bool,
        documented: bool,
    ) -> ast.AST:
        before = self._is_read
        self._is_read = is_read
        self.generic_visit(node)
        self._is_read = before
        if not documented and ast.get_docstring(node) is not None:
            del node.body[0]
        node.body = node.body or [ast.Pass()]
        return node
