"""The identity of a finding, which stays the same when lines and values change."""

from __future__ import annotations

import hashlib
import re

# The part of a path after these is the same on every machine.
_SHARED = ("/site-packages/", "/dist-packages/", "torchproof/targets/workloads/")
# Evidence within a cause: it quotes values, possibly shortened.
_EVIDENCE = re.compile(r"; the guard that failed: .*$", re.DOTALL)
_CELL = re.compile(r"(?:^|/)In \[\d+\]$")
_FOLDERS = re.compile(r"(?<![\w/])(?:/[\w.+@~-]+)+/(?=[\w<])")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+?)_at_\d+")
_VALUE = re.compile(
    r"""
    (?<!\w)(?:'[^'\n]*'|"[^"\n]*")(?!\w)               # a string
    | (?<![\w.])-?(?:0x[0-9a-fA-F]+
        | (?:\d[\d_,]*\d|\d)(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:[a-zA-Z]{1,3}\b|%)?
    | (?<!\w)[su]\d+(?!\w)                             # a symbol for a size
    | (?<![\w.])(?:True|False|None|-?inf|nan)(?!\w)
    | (?<!\w)torch\.(?:b?float|u?int|complex|bool)\d*(?!\w)
    """,
    re.VERBOSE,
)
_MANY = (
    # A list of values of any length, in brackets or in words.
    re.compile(r"[\[({]\s*(?:(?:was )?\#(?:\s*[,:=*x]\s*(?:\#|\.\.\.))*,?)?\s*[\])}]"),
    re.compile(
        r"\#(?:\s*(?:,|;|\band\b|\bor\b|\bto\b|\bthen\b|->|x)+\s*(?:\#|\.\.\.))+"
    ),
)
_NOUN = re.compile(r"# (\w{3,})s\b")


def identity(code: str, file: str | None, function: str | None, cause: str) -> str:
    """A hash that is the same on every machine and after edits elsewhere."""
    words = "\0".join((code, _stable_path(file or ""), function or "", plain(cause)))
    return hashlib.sha256(words.encode(errors="surrogatepass")).hexdigest()[:16]


def plain(cause: str) -> str:
    """A cause with values, counts and lists of values replaced by `#`."""
    text = _EVIDENCE.sub("", cause)
    text = _RESUMED.sub(r"\1", _FOLDERS.sub("", text))
    text = _VALUE.sub("#", text)
    before = None
    while before != text:
        before = text
        for many in _MANY:
            text = many.sub("#", text)
    return _NOUN.sub(r"# \1", text)


def _stable_path(file: str) -> str:
    path = file.replace("\\", "/")
    if _CELL.search(path):
        return "In"  # running a cell again gives it another number
    for mark in _SHARED:
        _, marker, rest = path.rpartition(mark)
        if marker:
            return rest
    absolute = path.startswith("/") or path[1:2] == ":"
    return path.rpartition("/")[2] if absolute else path
