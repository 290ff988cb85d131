"""Imports the exports of a package at first use.

Importing a package loads no other module, so that, for example, showing a saved run
never loads torch. The `if TYPE_CHECKING:` block of its `__init__.py` lists the exports:

    if TYPE_CHECKING:
        from torchproof.records.run import Run as Run
    else:
        __getattr__, __all__ = lazy_exports(__name__)
"""

from __future__ import annotations

import ast
import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of a package, from its block for type checkers."""
    file = sys.modules[package].__file__
    assert file is not None
    homes = _exports(ast.parse(Path(file).read_text(encoding="utf-8")))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home == package or not hasattr(import_module(home), name):  # a module
            value = import_module(f"{home}.{name}")
        else:
            value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(homes)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Without garbage collection, which takes a fifth of the time of large imports.

    Imports make few cycles; the next collection finds them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _exports(tree: ast.Module) -> dict[str, str]:
    """The module that each exported name comes from."""
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
