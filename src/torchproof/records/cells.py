"""Sources that are no files: the cells of a notebook.

A cell has the path `In [3]` in the working directory, so reports show `In [3]`. What
reads source asks here for its text, and `linecache` has it as well.
"""

from __future__ import annotations

import linecache
import os
import re

from torchproof.records.files import MOST_SOURCE_BYTES, AnyPath, read_bytes

_CELL = re.compile(r"(?:.*/)?(In \[\d+\])$", re.DOTALL)
_texts: dict[str, str] = {}


def path_of(number: int) -> str:
    """The path of a cell."""
    return os.path.join(os.getcwd(), f"In [{number}]")


def name_in(file: str) -> str | None:
    """`In [3]` if the path is that of a cell."""
    cell = _CELL.match(file)
    return cell[1] if cell else None


def place(file: str, line: int | None) -> str:
    """`file.py:7`, or `In [3], line 7` for a cell."""
    cell = name_in(file)
    if line is None:
        return cell or file
    return f"{cell}, line {line}" if cell else f"{file}:{line}"


def register(file: str, text: str) -> None:
    """Makes the text of a cell readable under its path and under its name."""
    for name in {file, os.path.basename(file)}:
        _texts[name] = text
        # Without a time of modification, the entry is not compared with the disk.
        entry = (len(text), None, text.splitlines(True), name)
        linecache.cache[name] = entry


def is_source(file: AnyPath) -> bool:
    """Whether it is a file or the path of a registered cell."""
    return os.fspath(file) in _texts or os.path.isfile(file)


def read_source(file: AnyPath) -> bytes:
    """The source of a file or a cell; raises `OSError` if there is none."""
    text = _texts.get(os.fspath(file))
    return read_bytes(file, MOST_SOURCE_BYTES) if text is None else text.encode()
