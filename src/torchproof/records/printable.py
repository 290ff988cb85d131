"""Makes untrusted text safe to print: no character can control the terminal.

Names, messages and paths come from saved runs, packs, programs and command lines. A
control character in one of them could move the cursor, set a title, forge a log line or
reverse the reading direction. Such characters are written as escapes (`\\x1b`).
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

# Unicode categories: control, format (including bidirectional), surrogate, private,
# unassigned, line and paragraph separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Fields with Python code: they keep their line breaks.
_CODE = {"source", "lines", "diff"}

_COMMAND = re.compile(r"^([ \t]*)::", re.MULTILINE)

_Record = TypeVar("_Record")


def seen(text: str) -> str:
    """Escapes characters that are invisible, bidirectional or not encodable."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_seen(c) else _escape(c) for c in text)


def _is_seen(letter: str) -> bool:
    return letter in "\n\t" or unicodedata.category(letter) not in _UNSEEN


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def line(text: object) -> str:
    """`seen` text on one line, with whitespace collapsed."""
    return seen(" ".join(str(text).split()))


def unbroken(text: object) -> str:
    """`seen` text on one line, with its spaces unchanged."""
    return seen(str(text).replace("\r", "").replace("\n", " "))


def document(text: str) -> str:
    """`seen` text of several lines, with line endings normalized."""
    return seen(text.replace("\r\n", "\n").replace("\r", "\n"))


def no_commands(text: str) -> str:
    """Escapes GitHub workflow commands, such as `::error::`, at the start of lines.

    Call it after wrapping, since wrapping can move a command to the start of a line.
    """
    return _COMMAND.sub(r"\1\\x3a:", text)


def record(value: _Record) -> _Record:
    """The record with all its texts `seen`, each on one line unless it is code."""
    changed: _Record = _safe(value, "")
    return changed


def _safe(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return document(value) if name in _CODE else unbroken(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        texts = {
            field.name: _safe(getattr(value, field.name), field.name)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **texts)
    if isinstance(value, Mapping):
        return {_safe(key, ""): _safe(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_safe(item, name) for item in value)
    return value
