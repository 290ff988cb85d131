"""Finds the user's own files that a file imports, without importing them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchproof.checking.static.program import Program
from torchproof.checking.static.source import Source, Unreadable
from torchproof.records import located, whose

_MOST_FILES = 500


def with_imports(files: Iterable[Path]) -> list[Path]:
    """The files, and the user's files that they import directly or indirectly."""
    files_found = {path.resolve(): None for path in files}
    waiting = list(files_found)
    while waiting and len(files_found) < _MOST_FILES:
        for path in _imported(waiting.pop()):
            if path not in files_found and whose(str(path)) == "user":
                files_found[path] = None
                waiting.append(path)
    return list(files_found)


def assumed_roots(files: Iterable[Path]) -> dict[str, list[str]]:
    """The functions to treat as compiled when no run shows which ones are."""
    roots = {}
    for path in files:
        try:
            source = Source.read(path)
            roots[str(path)] = [f.name for f in Program([source]).roots(source)]
        except (Unreadable, RecursionError):
            continue  # the reader names it
    return roots


def _imported(path: Path) -> Iterator[Path]:
    try:
        tree = Source.read(path).tree
    except Unreadable:
        return  # the reader names it
    named = {name for node in ast.walk(tree) for name in _names(node, path)}
    names = {name for each in named for name in _with_packages(each)}
    folders = [str(_root(path))]
    for name in sorted(names):
        file = located(name, folders)
        if file is not None:
            yield file.resolve()


def _names(node: ast.AST, path: Path) -> Iterator[str]:
    """Dotted names that may be modules; for `from a import b`, `a` and `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = list(path.relative_to(_root(path)).parent.parts)
        start = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*start, *filter(None, [node.module])])
        if origin:
            yield origin
        yield from (f"{origin}.{a.name}".lstrip(".") for a in node.names)


def _with_packages(name: str) -> Iterator[str]:
    """A module, and the packages that Python imports before it."""
    return itertools.accumulate(name.split("."), "{}.{}".format)


def _root(path: Path) -> Path:
    """The folder where absolute imports of a file start."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder
