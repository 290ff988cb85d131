"""What a report says, before any format: a document of blocks.

Each verb builds one document; each format renders the blocks of one view. So a new verb
has every format, and a new format is one file. Texts are plain: code in backticks is
code in every format, and nothing else in them is ever markup.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from torchproof.records import Fix, RuleText
from torchproof.report.numbers import UNKNOWN

_Row = TypeVar("_Row")


class View(enum.Flag):
    """How a document is read; a format renders one of them."""

    TERMINAL = enum.auto()  # brief, no wider than a terminal, the conclusion last
    PAPER = enum.auto()  # complete, from top to bottom
    PAGE = enum.auto()  # complete, with charts, and with parts that can be folded
    AGENT = enum.auto()  # few tokens, each line with a label
    REVIEW = enum.auto()  # what stands beside lines of code
    READ = PAPER | PAGE
    ALL = TERMINAL | PAPER | PAGE | AGENT | REVIEW


class Code(str):
    """A part of a text that is code, whatever it contains."""


class Link(Code):
    """Code that leads to another part of the same page."""

    anchor: str

    def __new__(cls, text: str, anchor: str) -> Link:
        made = super().__new__(cls, text)
        made.anchor = anchor
        return made


Text = str | tuple[str, ...]


def plain(text: Text) -> str:
    """The text in a format without markup."""
    return text if isinstance(text, str) else "".join(text)


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A part of a document; without `content` there is nothing to show."""

    content: ClassVar[str | None] = None  # the name of the field that must not be empty
    views: View = View.ALL

    @property
    def is_empty(self) -> bool:
        return bool(self.content) and not getattr(self, str(self.content))


@dataclass(frozen=True)
class Title(Block):
    """The title of a document: what it is about, and the target."""

    text: str
    target: str
    verb: str
    run: str = ""  # its id, which `show` takes


@dataclass(frozen=True)
class Tile:
    """A key number."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Verdict(Block):
    """The result of a run in a word and a sentence, and its key numbers."""

    tone: str  # good, bad, open
    word: str
    text: str
    more: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True)
class Section(Block):
    """Blocks below a heading, with an anchor that pages link to; left out if empty.

    `note` stands beside the heading, `label` in a list of contents.
    """

    content = "blocks"
    title: str
    blocks: tuple[Block, ...]
    anchor: str = ""
    note: str = ""
    label: str = ""
    style: str = ""


@dataclass(frozen=True)
class Group(Block):
    """Blocks without a heading that belong together."""

    content = "blocks"
    blocks: tuple[Block, ...]
    in_columns: bool = False  # beside each other, where there is room


@dataclass(frozen=True)
class Fold(Block):
    """Details that a page shows when they are opened."""

    content = "blocks"
    title: str
    blocks: tuple[Block, ...]
    is_open: bool = False


@dataclass(frozen=True)
class Paragraph(Block):
    """A sentence or more; `label` says what it is, and agents need it."""

    content = "text"
    text: Text
    label: str = ""
    style: str = ""  # strong, legend, caption, missing, heading, aside


@dataclass(frozen=True)
class Items(Block):
    """A list; agents read each line with the label."""

    content = "lines"
    lines: tuple[Text, ...]
    title: str = ""
    label: str = ""
    style: str = ""  # tasks, sentences, heading, folded, failures


@dataclass(frozen=True)
class Facts(Block):
    """Names with their values."""

    content = "facts"
    facts: tuple[tuple[str, Text], ...]
    title: str = ""


@dataclass(frozen=True)
class Steps(Block):
    """What to run next: purposes with their commands."""

    content = "steps"
    steps: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True)
class Listing(Block):
    """Source code, commands or characters to read as they are."""

    content = "text"
    text: str
    language: str = ""
    caption: Text = ""
    label: str = "code"
    anchor: str = ""  # for a button that copies it


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a badge behind its text."""

    text: str
    badge: str = ""
    tone: str = ""

    def __str__(self) -> str:
        if not self.badge or not self.text:
            return self.text or self.badge
        return f"{self.text} ({self.badge})"


@dataclass(frozen=True)
class Table(Block):
    """Rows of cells, the first of which is a name.

    `lines` are sentences below the table; the row whose name is `marked` is marked.
    """

    content = "rows"
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    lines: tuple[str, ...] = ()
    marked: str | None = None
    style: str = ""

    def shortened(self) -> Table:
        """Moves a strategy that all rows share into the title."""
        at = self.header.index("strategy")
        if len({str(row[at]) for row in self.rows}) != 1:
            return self
        rows = tuple(row[:at] + row[at + 1 :] for row in self.rows)
        header = self.header[:at] + self.header[at + 1 :]
        title = f"{self.title} ({self.rows[0][at]})"
        return replace(self, title=title, header=header, rows=rows)


def columns(
    title: str,
    rows: Sequence[_Row],
    cells: Mapping[str, Callable[[_Row], str]],
    lines: Iterable[str] = (),
    *,
    optional: Iterable[str] = (),
) -> Table:
    """A table of records, each cell by its column; optional ones need a value."""
    by_name = {name: [cell(row) for row in rows] for name, cell in cells.items()}
    for name in optional:
        if not any(text != UNKNOWN for text in by_name[name]):
            del by_name[name]
    return Table(
        title, tuple(by_name), tuple(zip(*by_name.values(), strict=True)), tuple(lines)
    )


@dataclass(frozen=True)
class Chart(Block):
    """Data that a page draws; other views have the same numbers as a table."""

    content = "data"
    kind: str
    data: Any = field(hash=False)
    title: str = ""


@dataclass(frozen=True)
class Card(Block):
    """A thing with its place, its tags and some words."""

    text: Text
    tags: tuple[str, ...] = ()
    words: str = ""
    source: str = ""


@dataclass(frozen=True)
class Rule(Block):
    """What a rule says about all of its findings."""

    code: str
    text: RuleText


@dataclass(frozen=True)
class Diff:
    """A change of files, as a unified diff; `title` says what it is."""

    text: str
    title: str


@dataclass(frozen=True)
class FixBlock(Block):
    """One fix with its diff, and what proves it."""

    number: int
    fix: Fix
    place: str
    proof: str
    written: str

    @property
    def diff(self) -> Diff:
        return Diff(self.fix.diff, f"Diff of fix {self.number}")


def seen_by(view: View, blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The blocks of a view that have something to show."""
    return tuple(_seen_by(view, blocks))


def _seen_by(view: View, blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if not block.views & view:
            continue
        if isinstance(block, Section | Group | Fold):
            block = replace(block, blocks=seen_by(view, block.blocks))
        if not block.is_empty:
            yield block
