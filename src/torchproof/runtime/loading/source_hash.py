"""The source that was traced, known again: a hash of each file's bytes and of its code.

Where the bytes are the same, nothing is parsed; where they are not, comments and layout
do not count.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchproof.records import located
from torchproof.strategies import code_hash

Hashes = dict[str, dict[str, Any]]


def hashes(files: Iterable[str]) -> Hashes:
    """Of each file that a loaded module came from, by the name of the module."""
    wanted, found = set(files), {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path in wanted and name != "__main__":
            raw = Path(path).read_bytes()
            found[_called(name, path)] = {
                "file": os.path.basename(path),
                "sha256": hashlib.sha256(raw).hexdigest(),
                "code": _code(raw),
            }
    return found


def changes(packed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What of the traced source is another here; what is not found is not compared."""
    found = []
    for name, told in packed.items():
        for path in _candidates(name, str(told.get("file"))):
            raw = path.read_bytes()
            if hashlib.sha256(raw).hexdigest() == told.get("sha256"):
                break
            if (code := _code(raw)) is not None and code == told.get("code"):
                break
        else:
            if _candidates(name, str(told.get("file"))):
                found.append(f"the code of {name} changed after it was made")
    return found


def _candidates(name: str, file: str) -> list[Path]:
    """The files that a module may be here: a service may load it by another name."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if path is None and "." in name:
        path = located(name)
    if path is not None and os.path.basename(path) == file:
        return [Path(path)] if Path(path).is_file() else []
    others = (getattr(each, "__file__", None) for each in list(sys.modules.values()))
    named = {each for each in others if each and os.path.basename(each) == file}
    return [each for each in map(Path, sorted(named)) if each.is_file()]


def _called(name: str, path: str) -> str:
    """By its own name, also where a target is loaded from a file by its path."""
    stem = os.path.basename(path).removesuffix(".py")
    return stem if name == f"target_{stem}" else name


def _code(raw: bytes) -> str | None:
    try:
        return code_hash(raw)
    except (SyntaxError, ValueError, RecursionError):
        return None
