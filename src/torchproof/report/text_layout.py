"""Text for a terminal: wrapped paragraphs, and tables that also become Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchproof.report import markup, numbers

INDENT = "   "
_NUMBERS = ("median", "interval", "cold", "warm", "memory", "recompiles", "us/call")
_RATES = ("goodput", "max rate", "tokens", "capacity", "cost/M")
_COLD = ("first answer", "cold misses", "met from")
_RIGHT = (*_NUMBERS, *_RATES, *_COLD, "step", "first call", "MFU")
_PERCENTILE = re.compile(r"((queue|serve) )?p\d+(\.\d+)?")
# Keeps a column as narrow as its cells.
_SHORT = {"first call": "1st call", "first answer": "1st answer"}
_PROSE = "stops checking"  # a last column that is wrapped below its row
_MARK = "> "


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Lines between words: paths and names are never broken."""
    return textwrap.wrap(
        text,
        width=width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def items(lines: Iterable[str], width: int) -> Iterator[str]:
    for line in lines:
        yield from wrap(line, width, INDENT, INDENT * 2)


def code(text: str) -> list[str]:
    """Code between two empty lines."""
    return ["", *textwrap.indent(text.rstrip(), "    ").splitlines(), ""]


def joined(blocks: Iterable[Iterable[str]]) -> str:
    """Blocks of lines with an empty line between them; empty blocks are left out."""
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(filter(None, texts)) + "\n"


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(cells: Sequence[str], sizes: Sequence[int], header: Sequence[str]) -> str:
    """Names aligned to the left, numbers to the right."""
    return "  ".join(
        f"{cell:>{size}}" if is_number(name) else f"{cell:<{size}}"
        for cell, size, name in zip(cells, sizes, header, strict=True)
    ).rstrip()


def is_number(column: str) -> bool:
    is_percentile = _PERCENTILE.fullmatch(column) is not None
    return column in _RIGHT or column.endswith(" steps") or is_percentile


@dataclass(frozen=True)
class Table:
    """Rows of text cells, the first of which is a name.

    `lines` are sentences below the table. With `marked`, a `>` marks the row of that
    name, and all other rows are indented.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    marked: str | None = None

    def text(self, width: int) -> Iterator[str]:
        """A name that is too long for its column gets a line of its own."""
        if self.title:
            yield f"{self.title}:"
        count = len(self.header) - (self.header[-1] == _PROSE)
        names = self.header[:count]
        head = tuple(_SHORT.get(name, name) for name in names)
        sizes = widths([head, *(row[:count] for row in self.rows)])
        margin = "" if self.marked is None else " " * len(_MARK)
        room = width - len(margin) - sum(sizes[1:]) - 2 * (count - 1)
        sizes[0] = min(sizes[0], max(room, 0))
        if room >= len(head[0]):
            yield margin + aligned(head, sizes, names)
        for row in self.rows:
            mark = _MARK if row[0] == self.marked else margin
            if room < len(head[0]):
                yield f"{mark}{row[0]}"
                yield from wrap(self._in_words(row), width, INDENT)
                continue
            name = row[0]
            if len(name) > sizes[0]:
                yield f"{mark}{name}"
                mark, name = margin, ""
            yield mark + aligned((name, *row[1:count]), sizes, names)
            if count < len(row):
                yield from wrap(f"{_PROSE}: {row[-1]}", width, INDENT)
        yield from items(self.lines, width)

    def _in_words(self, row: Sequence[str]) -> str:
        """For a terminal that is too narrow for columns."""
        pairs = zip(self.header[1:], row[1:], strict=True)
        return ", ".join(f"{n} {cell}" for n, cell in pairs if cell != numbers.UNKNOWN)

    def markdown(self) -> str:
        """Heading, table and sentences."""
        rows = [tuple(map(markup.inline, row)) for row in self.rows]
        header = [
            name
            if _PERCENTILE.fullmatch(name)
            else markup.inline(f"{name[:1].upper()}{name[1:]}")
            for name in self.header
        ]
        parts = [f"### {markup.inline(self.title)}" if self.title else ""]
        parts += [markup.table(header, rows) if rows else ""]
        parts += [markup.bullets(map(markup.inline, self.lines))]
        return "\n\n".join(filter(None, parts))

    def shortened(self) -> Table:
        """Moves a strategy that all rows share into the title."""
        at = self.header.index("strategy")
        if len({row[at] for row in self.rows}) != 1:
            return self
        rows = tuple(row[:at] + row[at + 1 :] for row in self.rows)
        header = self.header[:at] + self.header[at + 1 :]
        return Table(f"{self.title} ({self.rows[0][at]})", header, rows, self.lines)
