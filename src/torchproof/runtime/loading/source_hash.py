"""Detects changes in the source files that were traced for a pack.

`hashes` takes file names and returns, for each module, a hash of the bytes and one of
the code. `changes` compares them with the files of this process. A file with the same
bytes is not parsed; otherwise comments and formatting do not count.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchproof.records import located
from torchproof.runtime.loading.pack_details import Source
from torchproof.strategies import code_hash


def hashes(files: Iterable[str]) -> dict[str, Source]:
    """The hashes of the files that loaded modules came from, by module name."""
    wanted = set(files)
    hashes_by_module = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path in wanted and name != "__main__":
            raw = Path(path).read_bytes()
            hashes_by_module[_module_name(name, path)] = Source(
                file=os.path.basename(path),
                sha256=hashlib.sha256(raw).hexdigest(),
                code=_code(raw),
            )
    return hashes_by_module


def changes(packed: Mapping[str, Source]) -> list[str]:
    """One line for each traced file whose code differs here; skips missing files."""
    differences = []
    for name, source in packed.items():
        candidates = _candidates(name, source.file)
        if candidates and not any(_is_same(path, source) for path in candidates):
            differences.append(f"the code of {name} differs from the build")
    return differences


def _is_same(path: Path, source: Source) -> bool:
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() == source.sha256:
        return True
    code = _code(raw)
    return code is not None and code == source.code


def _candidates(name: str, file: str) -> list[Path]:
    """The files that may be this module: a service may import it by another name."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if path is None and "." in name:
        path = located(name)
    if path is not None and os.path.basename(path) == file:
        return [Path(path)] if Path(path).is_file() else []
    others = (getattr(each, "__file__", None) for each in list(sys.modules.values()))
    named = {each for each in others if each and os.path.basename(each) == file}
    return [each for each in map(Path, sorted(named)) if each.is_file()]


def _module_name(name: str, path: str) -> str:
    """The module's name; a target loaded from a path has a generated name."""
    stem = os.path.basename(path).removesuffix(".py")
    return stem if name == f"target_{stem}" else name


def _code(raw: bytes) -> str | None:
    try:
        return code_hash(raw)
    except (SyntaxError, ValueError, RecursionError):
        return None
