"""Imports the exports of a package at first use.

Each package lists its exports. Importing the package itself loads no other module, so
that, for example, showing a saved run never loads torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of a package.

    `names` maps a module to the names it exports; `modules` are exported themselves.
    A module is relative to the package (".capture") or absolute.
    """
    homes = {name: home for home, group in names.items() for name in group}
    whole = {home.rpartition(".")[2]: home for home in modules}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(homes[name], package), name)
        elif name in whole:
            value = import_module(whole[name], package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted({*homes, *whole})
