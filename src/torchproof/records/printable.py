"""Text of unknown origin, made safe to print: no character acts on a terminal.

Names, messages and paths come from saved runs, packs, programs and command lines. A
control character in one of them could move the cursor, set a title, forge a line of a
log or turn the direction of reading. Such characters are written as escapes (`\\x1b`).
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

# Control, format (bidirectional ones among them), surrogate, private, unassigned,
# separators of lines and of paragraphs.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Fields that hold Python to paste: their lines stay lines.
_CODE = {"source", "lines"}

_COMMAND = re.compile(r"^([ \t]*)::", re.MULTILINE)

_Record = TypeVar("_Record")


def seen(text: str) -> str:
    """With what is invisible, turns the direction or cannot be written escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_seen(c) else _escape(c) for c in text)


def _is_seen(letter: str) -> bool:
    return letter in "\n\t" or unicodedata.category(letter) not in _UNSEEN


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def line(text: object) -> str:
    """Seen, and on one line."""
    return seen(" ".join(str(text).split()))


def unbroken(text: object) -> str:
    """Seen, on one line, with its spaces as they are."""
    return seen(str(text).replace("\r", "").replace("\n", " "))


def document(text: str) -> str:
    """Seen, line by line, whatever ends the lines."""
    return seen(text.replace("\r\n", "\n").replace("\r", "\n"))


def no_commands(text: str) -> str:
    """A text of which no line is a workflow command, such as `::error::`, in a CI log.

    A long message may be broken anywhere, so also what began no line may begin one.
    """
    return _COMMAND.sub(r"\1\\x3a:", text)


def record(value: _Record) -> _Record:
    """A record whose texts are all seen, each on one line unless it is code."""
    changed: _Record = _safe(value, "")
    return changed


def _safe(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return seen(value) if name in _CODE else unbroken(value)
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
