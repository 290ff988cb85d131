"""Removes the parts of a module that its entry points do not reach.

What it removes may matter in ways that names do not show. So the whole program is the
next candidate if what is left does not fail.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable

from torchproof.packs.repro.programs.edits import remove_annotations
from torchproof.packs.repro.programs.scopes import (
    Definition,
    Globals,
    bound_by,
    is_future,
    mentioned_names,
)

# Packages that a repro may import: they come with Python or with torch.
AVAILABLE = frozenset(sys.stdlib_module_names) | {"torch", "functorch", "numpy"}
# Statements for readers, type checkers, logging or a main program.
_IRRELEVANT = re.compile(
    r"logging\.basicConfig\(|warnings\.(?:filterwarnings|simplefilter)\(|__all__ = "
    r"|if (?:\w+\.)?TYPE_CHECKING:|if .*__name__|pass$"
)
_REGISTERS = re.compile(r"register|\bimpl|library")
_CALLED_BY_TORCH = {"forward", "backward", "setup_context", "vmap", "jvp"}
_Import = ast.Import | ast.ImportFrom


def shake(tree: ast.Module, roots: Iterable[str]) -> ast.Module:
    """Keeps the statements and methods that the roots need.

    Docstrings and annotations go too, unless a decorator or a class may read them.
    """
    tree = without_annotations(tree)
    tree.body = [
        node
        for node in tree.body
        if not _IRRELEVANT.match(ast.unparse(node)) and not _is_docstring(node)
    ]
    size = -1
    while size != (size := sum(1 for _ in ast.walk(tree))):
        _keep_reachable(tree, set(roots))
        _drop_unused_methods(tree)
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
        # A decorator may put what it decorates into a global that is read.
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
                or reading & {n for d in _decorators(node) for n in mentioned_names(d)}
            )
        ]
        if not more:
            break
        for place, names in more:
            kept.add(place)
            needed |= names.used
    tree.body = [tree.body[place] for place in sorted(kept)]
    for node in tree.body:
        if isinstance(node, _Import) and not is_future(node):
            node.names = [a for a in node.names if bound_by(a) in needed]


def _globals_of(tree: ast.Module) -> list[Globals]:
    """Returns the globals of each statement."""
    bound = Globals(tree).bound
    found = [Globals(ast.Module([node], [])) for node in tree.body]
    for one in found:
        one.used &= bound
    return found


def _registers(node: ast.stmt, names: Globals, available: set[str]) -> bool:
    """Whether a statement registers something with torch or with a kept object."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return is_future(node)
        case ast.Expr(value=ast.Call(func=called)):  # `sell.register_autograd(back)`
            calls: list[ast.expr] = [called]
        case ast.Assign(value=value):  # `torch.library.Library("shop", "DEF")`
            calls = [value] if "torch.library" in ast.unparse(value) else []
        case _:
            calls = _decorators(node)
    used = {name for each in calls for name in mentioned_names(each)} & names.used
    return used <= available and any(_REGISTERS.search(ast.unparse(c)) for c in calls)


def _decorators(node: ast.AST) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def _drop_unused_methods(tree: ast.Module) -> None:
    """Removes methods that nothing names."""
    mentioned = set(mentioned_names(tree)) | _CALLED_BY_TORCH
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [
                member
                for member in node.body
                if not isinstance(member, Definition)
                or member.decorator_list
                or re.fullmatch(r"__\w+__", member.name)
                or member.name in mentioned
            ] or [ast.Pass()]


def without_annotations(tree: ast.Module) -> ast.Module:
    """Removes docstrings and annotations of functions that no decorator or call reads.

    Python does not evaluate the annotations of local variables, and a global that a
    function declares must not have one.
    """
    passed = {
        name
        for node in tree.body
        if not isinstance(node, Definition | ast.ClassDef)
        for name in mentioned_names(node)
    }
    for node in ast.walk(tree):
        is_read = (
            getattr(node, "decorator_list", ()) or getattr(node, "name", "") in passed
        )
        if isinstance(node, Definition) and not is_read:
            remove_annotations(node)
            node.body = [n for n in node.body if not _is_docstring(n)] or [ast.Pass()]
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.ClassDef):
            plain = [each for each in map(_plain, body) if each is not None]
            node.body = plain or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.fix_missing_locations(tree)


def _plain(node: ast.stmt) -> ast.stmt | None:
    if not isinstance(node, ast.AnnAssign):
        return node
    return ast.Assign([node.target], node.value, lineno=0) if node.value else None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
