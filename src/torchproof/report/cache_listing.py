"""Renders cache folders as text or JSON."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Sequence

from torchproof.records import line, seen
from torchproof.report import numbers
from torchproof.report.cache_folders import Amount, CacheFolder

_DAY_S = 86_400.0


def render(
    folders: Sequence[CacheFolder],
    cleared: Sequence[CacheFolder] | None,
    format: str,
    *,
    width: int = 80,
) -> str:
    """The folders, and those that were cleared; `cleared` is None without --clear."""
    if format == "json":
        names = None if cleared is None else [folder.name for folder in cleared]
        document = {
            "caches": [folder.to_json() for folder in folders],
            "cleared": names,
        }
        return json.dumps(document, indent=1) + "\n"
    lines = [text for folder in folders for text in (*_folder(folder, width), "")]
    lines += _total(folders) if cleared is None else _cleared(folders, cleared)
    return "".join(f"{seen(text)}\n" for text in lines)


def _folder(folder: CacheFolder, width: int) -> Iterator[str]:
    amount = folder.amount
    size = numbers.size(amount.bytes) if amount else "not present"
    yield f"{folder.name:18}{size:>14}   {line(folder.path)}"
    by = f" ({folder.chosen_by})" if folder.chosen_by else ""
    indent = " " * 4
    yield from textwrap.wrap(
        line(f"{folder.about}{by}"),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
    )
    if amount is None:
        return
    if amount.files:
        files = numbers.amount(amount.files, "file")
        yield f"{indent}{files}, last used {_ago(amount)}"
    for name, part in folder.parts.items():
        files = numbers.amount(part.files, "file")
        yield f"{indent}  {numbers.size(part.bytes):>9}  {line(name)}, {files}"
    action = (
        f"not cleared: {folder.kept}" if folder.kept else f"clear: {folder.command}"
    )
    yield f"{indent}{line(action)}"


def _ago(amount: Amount) -> str:
    if amount.used is None:
        return numbers.UNKNOWN
    seconds = max(time.time() - amount.used, 0.0)
    if seconds < 2 * _DAY_S:
        return f"{numbers.duration(seconds)} ago"
    return f"{seconds / _DAY_S:.0f} days ago"


def _total(folders: Sequence[CacheFolder]) -> list[str]:
    amounts = [folder.amount for folder in folders if folder.amount]
    size = numbers.size(sum(amount.bytes for amount in amounts))
    files = numbers.amount(sum(amount.files for amount in amounts), "file")
    command = "torchproof show --caches --clear"
    return [f"{size} in {files}. To clear all, while nothing compiles: {command}"]


def _cleared(
    folders: Sequence[CacheFolder], cleared: Sequence[CacheFolder]
) -> Iterator[str]:
    for folder in cleared:
        assert folder.amount
        size = numbers.size(folder.amount.bytes)
        yield f"Cleared {folder.name}: {size} in {line(folder.path)}."
    if not cleared:
        yield "Nothing to clear."
    refused = [folder for folder in folders if folder.amount and folder.kept]
    for folder in refused:
        yield f"Not cleared: {folder.name}: {folder.kept}."
