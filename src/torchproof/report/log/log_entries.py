"""Parses the entries of a log, also after people edited the file.

An entry begins at a heading `## 2026-01-31 - Plan: title` or, without a heading, at its
line `- Entry: ...`. Headings in code blocks and comments do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from torchproof.records import UserError
from torchproof.report.log.log_file import LINE

KINDS = ("Plan", "Observation", "Retrospective")
DATE = "%Y-%m-%d %H:%M:%S"

_HEADING = re.compile(r"## +(\d{4}-\d\d-\d\d)\s+\S{1,3}\s+(\w+):\s*(.*)")
_FACT = re.compile(r"[-*+] +(\w+): +(.*)")
_CODE = re.compile(r"(`+) ?(.+?) ?\1(?!`)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


@dataclass(frozen=True)
class Entry:
    """One entry, or other text between two headings (without a kind)."""

    line: int
    date: str = ""
    kind: str = ""
    title: str = ""
    lines: tuple[str, ...] = ()  # without the heading; lines of code are empty

    def fact(self, name: str) -> str | None:
        """The value of a line `- Name: value`."""
        for text in self.lines:
            match = _FACT.fullmatch(text.rstrip())
            if match and match[1] == name:
                return match[2].strip()
        return None

    def named(self, name: str) -> str | None:
        """The code span at the start of such a value, or the whole value."""
        value = self.fact(name)
        marked = _CODE.match(value or "")
        return marked[2] if marked else value

    @property
    def id(self) -> str | None:
        return self.named("Entry")

    @property
    def written(self) -> datetime:
        """The time of writing if the entry has it, else the day of its heading."""
        for text, form in ((self.fact("Date"), DATE), (self.date, "%Y-%m-%d")):
            try:
                return datetime.strptime(text or "", form)
            except ValueError:
                continue
        return datetime.min

    def section(self, name: str) -> tuple[str, ...]:
        """The lines under `### name`."""
        lines: list[str] = []
        inside = False
        for text in self.lines:
            if re.match(r"#{1,6} ", text):
                inside = text.lstrip("#").strip().lower() == name.lower()
            elif inside:
                lines.append(text)
        return tuple(lines)


def entries(text: str) -> list[Entry]:
    """The entries of a log, in the order of the file."""
    parsed = [_entry(number, lines) for number, lines in _stretches(text)]
    return [entry for entry in parsed if entry.kind in KINDS]


def find(text: str, kind: str, name: str | None, file: str) -> Entry:
    """The entry with this id, id prefix or part of its title; the last for None."""
    candidates = [entry for entry in entries(text) if entry.kind == kind]
    if not candidates:
        raise UserError(
            f"no {kind.lower()} in {file}: add one with torchproof log plan"
            ' "what you will try"'
        )
    if name is None:
        return max(enumerate(candidates), key=lambda each: (each[1].written, each[0]))[
            1
        ]
    matching = (
        [e for e in candidates if e.id == name]
        or [e for e in candidates if (e.id or "").startswith(name)]
        or [e for e in candidates if name.lower() in e.title.lower()]
    )
    if not matching:
        raise UserError(
            f"no {kind.lower()} {name!r} in {file}: torchproof log --list shows them"
        )
    if len(matching) > 1:
        names = ", ".join(entry.id or entry.title for entry in matching[:4])
        raise UserError(
            f"{name!r} matches {len(matching)} entries ({names}): be more specific"
        )
    return matching[0]


def open_block(text: str) -> int | None:
    """The first line of a code block that is never closed."""
    return next((at + 1 for at, end in _fences(LINE.split(text)) if end is None), None)


def _entry(number: int, lines: Sequence[str]) -> Entry:
    heading = _HEADING.fullmatch(lines[0].rstrip()) if lines else None
    if heading:
        date, kind, title = heading.groups()
        return Entry(number, date, kind, title.strip(), tuple(lines[1:]))
    bare = Entry(number, lines=tuple(lines))
    kind, day = bare.fact("Type") or "", (bare.fact("Date") or "")[:10]
    return Entry(number, day, kind if bare.id else "", bare.id or "", tuple(lines))


def _stretches(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, lines) from each heading, or `- Entry:` without one, to the next."""
    start, lines, awaited = 1, list[str](), False
    for number, line in enumerate(_prose(LINE.split(text)), 1):
        names = (fact := _FACT.fullmatch(line.rstrip())) and fact[1] == "Entry"
        if re.match(r"#{1,2} ", line) or (names and not awaited):
            yield start, lines
            start, lines = number, []
            awaited = _HEADING.fullmatch(line.rstrip()) is not None
        awaited = awaited and not names
        lines.append(line)
    yield start, lines


def _prose(lines: Sequence[str]) -> list[str]:
    """The lines, with lines of code blocks and comments replaced by empty ones."""
    prose = list(lines)
    for begin, end in [*_fences(lines), *_comments(lines)]:
        if end is not None:
            prose[begin : end + 1] = [""] * (end + 1 - begin)
    return prose


def _fences(lines: Sequence[str]) -> Iterator[tuple[int, int | None]]:
    """First and last line of each code block; None for one that is never closed."""
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None or (opened[1][0] == "`" and "`" in opened[2]):
            at += 1
            continue
        closing = re.compile(rf" {{0,3}}{re.escape(opened[1])}{opened[1][0]}*\s*")
        end = next(
            (n for n in range(at + 1, len(lines)) if closing.fullmatch(lines[n])), None
        )
        yield at, end
        at = at + 1 if end is None else end + 1


def _comments(lines: Sequence[str]) -> Iterator[tuple[int, int | None]]:
    begin = None
    for number, line in enumerate(lines):
        if begin is None and line.lstrip().startswith("<!--"):
            begin = number
        if begin is not None and "-->" in line:
            yield begin, number
            begin = None
