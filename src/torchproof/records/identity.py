"""The identity of a finding, which stays the same when lines and values change."""

from __future__ import annotations

import hashlib
import re

# The part of a path after these is the same on every machine.
_SHARED = ("/site-packages/", "/dist-packages/", "torchproof/targets/workloads/")
_CELL = re.compile(r"(?:^|/)In \[\d+\]$")
# The key of a finding whose record has an identity and no key: that identity follows.
_RECORDED = "recorded "


def identity(code: str, file: str | None, function: str | None, key: str) -> str:
    """A hash that is the same on every machine and after edits elsewhere."""
    if is_recorded(key):
        return key.removeprefix(_RECORDED)
    words = "\0".join((code, stable_path(file or ""), function or "", key))
    return hashlib.sha256(words.encode(errors="surrogatepass")).hexdigest()[:16]


def recorded(identity: str) -> str:
    """The key of a finding of an older record, to which others refer by identity."""
    return f"{_RECORDED}{identity}"


def is_recorded(key: str) -> bool:
    return key.startswith(_RECORDED)


def stable_path(file: str) -> str:
    path = file.replace("\\", "/")
    if _CELL.search(path):
        return "In"  # running a cell again gives it another number
    for mark in _SHARED:
        _, marker, rest = path.rpartition(mark)
        if marker:
            return rest
    absolute = path.startswith("/") or path[1:2] == ":"
    return path.rpartition("/")[2] if absolute else path
