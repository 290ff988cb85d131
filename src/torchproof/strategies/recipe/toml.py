"""Writes plain data as TOML, which the standard library reads but does not write.

TOML has no null: a key whose value is None is left out. Text that UTF-8 cannot encode,
such as a file name in another encoding, is written with escapes.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchproof.records import JsonObject

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 88


def dumps(plain: JsonObject) -> str:
    """The values first, then a section for each mapping and each list of mappings."""
    return "\n".join(_section(plain, ())).lstrip("\n") + "\n"


def _section(plain: JsonObject, path: tuple[str, ...]) -> Iterator[str]:
    tables = {}
    lists = {}
    for key, value in plain.items():
        if isinstance(value, Mapping):
            tables[key] = dict(value)
        elif _is_list_of_tables(value):
            lists[key] = value
        elif value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, table in tables.items():
        yield f"\n[{_dotted((*path, key))}]"
        yield from _section(table, (*path, key))
    for key, several in lists.items():
        for table in several:
            yield f"\n[[{_dotted((*path, key))}]]"
            yield from _section(table, (*path, key))


def _is_list_of_tables(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(isinstance(each, Mapping) for each in value)


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(map(_key, path))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _lines(value) if "\n" in value else _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        inner = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, list | tuple):
        return _array([_value(each) for each in value if each is not None])
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")


def _array(items: list[str]) -> str:
    short = f"[{', '.join(items)}]"
    if len(short) <= _WIDTH - 10:
        return short
    return "[\n" + "".join(f"  {item},\n" for item in items) + "]"


def _text(text: str) -> str:
    """As JSON writes it; what cannot be printed is an escape of eight digits."""
    plain = json.dumps(_encodable(text), ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain)


def _lines(text: str) -> str:
    """A multi-line string that people can copy, if the text allows that."""
    text = _encodable(text)
    plain = all(c in "\n\t" or c.isprintable() for c in text)
    if not plain or "'''" in text or text.endswith("'"):
        return _text(text)
    return f"'''\n{text}'''"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
