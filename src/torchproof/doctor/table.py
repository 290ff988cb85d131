"""The table of checks, `checks.toml`: what a failure means, and what to do."""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchproof.records import JsonObject, MachineCheck, supported_torch


class Problem(Exception):
    """What was seen instead; `way` is a way to fail that the table has texts for."""

    def __init__(self, value: str, way: str = "", **fields: Any) -> None:
        super().__init__(value)
        self.value = value
        self.way = way
        self.fields = fields


def tried(
    key: str,
    look: Callable[..., str | Iterable[MachineCheck]],
    *arguments: Any,
    **words: Any,
) -> list[MachineCheck]:
    """Calls `look`, which returns what was seen or checks of its own, or raises.

    `words` are for the texts of the table.
    """
    try:
        seen = look(*arguments)
        if isinstance(seen, str):
            return [_check(key, words, value=seen, status="ok")]
        return [*seen]
    except Problem as problem:
        return [failed(key, problem.value, problem.way, **words, **problem.fields)]
    except Exception as error:
        return [failed(key, f"{type(error).__name__}: {error}".strip(), **words)]


def failed(
    key: str, value: str, way: str = "", *, optional: bool = False, **words: Any
) -> MachineCheck:
    row = _table()[key]
    changes = {"status": "missing", "optional": optional, **row, **row.get(way, {})}
    return _check(key, words, value=value, **changes)


def _check(key: str, words: JsonObject, **changes: Any) -> MachineCheck:
    row = {"name": key, **_table()[key], **changes}
    if row["status"] == "ok":
        row |= {"means": row.get("fine", ""), "action": "", "optional": False}
    fields = ("group", "name", "status", "value", "means", "action", "optional")
    texts = {name: row.get(name, "") for name in fields}
    here = "{}.{}".format(*sys.version_info)
    words = {"range": supported_torch(), "python": here, **words}
    for name in ("name", "means", "action"):
        texts[name] = texts[name].format_map(words)
    return MachineCheck(**texts)


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("checks.toml").read_text("utf-8"))
