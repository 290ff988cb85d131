"""Finds the file of a module without importing it or its parent packages."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path


def located(name: str, folders: Sequence[str] = ()) -> Path | None:
    """The file of a module by its dotted name; `folders` are searched first."""
    top, *inner = name.split(".")
    spec = _top(top, (*folders, os.getcwd(), *sys.path))
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # importlib.util.find_spec("a.b") imports `a`; PathFinder does not.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


@functools.lru_cache(maxsize=1024)
def _top(name: str, folders: tuple[str, ...]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, folders) or find_spec(name)
    except (ImportError, ValueError):
        return None
