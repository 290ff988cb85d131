"""Renders a document as text for a terminal: wrapped paragraphs and aligned columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from torchproof.report import numbers
from torchproof.report.charts.bars import Bar, Bars
from torchproof.report.document import (
    Block,
    Card,
    Chart,
    Diff,
    Facts,
    FixBlock,
    Fold,
    Group,
    Items,
    Listing,
    Paragraph,
    Section,
    Steps,
    Table,
    View,
    plain,
    seen_by,
)
from torchproof.report.finding_block import FindingBlock, Findings, brief, excerpt

INDENT = "   "
_RIGHT = re.compile(
    r"median( step)?|interval|cold|warm|memory|recompiles|us/call|goodput|max rate"
    r"|tokens|capacity|cost/M|first answer|cold misses|met from|step|first call|MFU"
    r"|A|B|.* steps|((queue|serve) )?p\d+(\.\d+)?"
)
# Keeps a column as narrow as its cells.
_SHORT = {"first call": "1st call", "first answer": "1st answer"}
_PROSE = "stops checking"  # a last column that is wrapped below its row
_MARK = "> "
_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"  # by eighths
_FULL, _SHADE = "\u2588", "\u2592"
_MOST = 12  # lines of a finding, unless its edit is longer
_PROSE_MOST = 170  # characters of each of its texts
_LEAST_BAR, _MOST_BAR = 10, 40
_COLOURS = {
    "high": "\x1b[31m",
    "medium": "\x1b[33m",
    "low": "\x1b[36m",
    "safe": "\x1b[32m",
    "unsafe": "\x1b[33m",
    "suggested": "\x1b[36m",
    "+": "\x1b[32m",
    "-": "\x1b[31m",
    "@": "\x1b[36m",
    "file": "\x1b[1m",
}
_PLAIN = "\x1b[0m"


def render(blocks: Iterable[Block], *, width: int = 80, colour: bool = False) -> str:
    """Blocks with an empty line between them; those without a line are left out."""
    return _Terminal(max(width, 40), colour).text(blocks)


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


def is_number(column: str) -> bool:
    return _RIGHT.fullmatch(column) is not None


class _Terminal:
    def __init__(self, width: int, colour: bool) -> None:
        self.width, self.colour = width, colour

    def text(self, blocks: Iterable[Block]) -> str:
        texts = ["\n".join(lines) for lines in self._blocks(blocks)]
        return "\n\n".join(filter(None, texts)) + "\n"

    def _blocks(self, blocks: Iterable[Block]) -> Iterator[list[str]]:
        for block in seen_by(View.TERMINAL, blocks):
            if isinstance(block, Section | Fold):
                yield from self._blocks(block.blocks)
            elif isinstance(block, Findings):
                for finding in block.findings:
                    yield [*self._finding(finding, block.evidence)]
            else:
                yield [*self._lines(block)]

    def _lines(self, block: Block) -> Iterator[str]:
        match block:
            case Group():
                for lines in self._blocks(block.blocks):
                    yield from lines
            case Paragraph():
                label = f"{block.label}: " if block.label else ""
                rest = INDENT if block.style == "aside" else ""
                yield from self._wrap(f"{label}{plain(block.text)}", "", rest)
            case Items():
                yield from self._wrap(f"{block.title}:") if block.title else ()
                indents = (
                    ("", INDENT) if block.style == "sentences" else (INDENT, INDENT * 2)
                )
                for line in block.lines:
                    yield from self._wrap(plain(line), *indents)
            case Facts():
                yield from _facts(block, self.width)
            case Steps():
                yield from (f"{what}: {command}" for what, command in block.steps)
            case Listing():
                yield from self._listing(block)
            case Table():
                yield from self._table(block)
            case Chart(kind="bars"):
                yield from self._bars(block.data)
            case Card():
                yield from self._wrap(", ".join((plain(block.text), *block.tags)))
                yield from self._wrap(block.words, INDENT)
            case FixBlock():
                yield from self._fix(block)

    def _wrap(self, text: str, first: str = "", rest: str | None = None) -> list[str]:
        return wrap(text, self.width, first, rest)

    def _labelled(self, label: str, text: str) -> list[str]:
        """A paragraph whose lines begin below each other, after the label."""
        first = INDENT + label
        return self._wrap(text, first, " " * len(first))

    def _tinted(self, text: str, tone: str = "") -> str:
        tone = _COLOURS.get(tone or text, "")
        return f"{tone}{text}{_PLAIN}" if self.colour and tone else text

    def _listing(self, block: Listing) -> Iterator[str]:
        if block.caption:
            yield from self._wrap(f"{plain(block.caption)}:")
            yield ""
        indent = INDENT if block.language == "text" else "    "
        yield from textwrap.indent(block.text.rstrip(), indent).splitlines()

    # -- tables ------------------------------------------------------------------------

    def _table(self, table: Table) -> Iterator[str]:
        """A name that is too long for its column gets a line of its own."""
        if table.title:
            yield f"{table.title}:"
        rows = [tuple(map(str, row)) for row in table.rows]
        count = len(table.header) - (table.header[-1] == _PROSE)
        names = table.header[:count]
        head = tuple(_SHORT.get(name, name) for name in names)
        sizes = _widths([head, *(row[:count] for row in rows)])
        margin = "" if table.marked is None else " " * len(_MARK)
        room = self.width - len(margin) - sum(sizes[1:]) - 2 * (count - 1)
        sizes[0] = min(sizes[0], max(room, 0))
        if room >= len(head[0]):
            yield margin + _aligned(head, sizes, names)
        for row in rows:
            mark = _MARK if row[0] == table.marked else margin
            if room < len(head[0]):
                yield f"{mark}{row[0]}"
                yield from self._wrap(_in_words(table.header, row), INDENT)
                continue
            name = row[0]
            if len(name) > sizes[0]:
                yield f"{mark}{name}"
                mark, name = margin, ""
            yield mark + _aligned((name, *row[1:count]), sizes, names)
            if count < len(row):
                yield from self._wrap(f"{_PROSE}: {row[-1]}", INDENT)
        for line in table.lines:
            yield from self._wrap(line, INDENT, INDENT * 2)

    # -- bars --------------------------------------------------------------------------

    def _bars(self, chart: Bars) -> Iterator[str]:
        head = ("strategy", "median", "interval")
        cells = [(bar.name, bar.median, bar.interval or "-") for bar in chart.bars]
        sizes = _widths([head, *cells])
        verdicts = [bar.verdict or "-" for bar in chart.bars]
        room = self.width - sum(sizes) - 8 - max(map(len, verdicts))
        narrow = room < _LEAST_BAR  # the name then gets a line of its own
        if narrow:
            room += sizes[0] - len(INDENT) + 2
        length = max(_LEAST_BAR, min(_MOST_BAR, room))
        drawn = [_drawn(bar, length) for bar in chart.bars]
        scale = f"0{chart.end:>{length - 1}}"
        ends = [f"{b:<{length}}  {v}" for b, v in zip(drawn, verdicts, strict=True)]
        for row, last in zip((head, *cells), (scale, *ends), strict=True):
            if narrow:
                yield row[0]
                yield f"{INDENT}{_aligned(row[1:], sizes[1:], head[1:])}  {last}"
            else:
                yield f"{_aligned(row, sizes, head)}  {last}"
        if any(_SHADE in bar for bar in drawn):
            yield f"{INDENT}{_SHADE} interval of the median"

    # -- findings and fixes ------------------------------------------------------------

    def _finding(self, block: FindingBlock, evidence: bool) -> Iterator[str]:
        finding = block.finding
        mark = "" if finding.status == "open" else f" ({finding.status})"
        head = (
            f"{block.position}  {finding.code} {self._tinted(finding.severity)}{mark}"
        )
        yield "  ".join(filter(None, (head, block.cost, block.ranks)))
        texts = [finding.message, finding.cause, finding.fix]
        if not evidence:  # those of an older version may be long
            texts = [brief(each, _PROSE_MOST) for each in texts]
        message = self._wrap(texts[0], INDENT)
        label = f"fix ({block.draft}): " if block.draft else "fix: "
        rest = [
            *self._labelled("why: ", texts[1]),
            *self._labelled(label, texts[2]),
            *self._draft(block),
        ]
        for item in filter(None, (*finding.evidence, finding.page) if evidence else ()):
            rest += self._labelled("  - ", item)
        rest += self._labelled("follows from ", block.follows)
        room = 2 if evidence else _MOST - 1 - len(message) - len(rest)
        yield from message
        yield from self._source(block, room)
        yield from rest
        if block.effects:
            yield from self._wrap(f"{block.explains}:", INDENT)
        for effect in block.effects:
            text = f"{effect.position}  {effect.finding.code}  {block.briefly(effect)}"
            yield from self._wrap(text, INDENT * 2, INDENT * 3)

    def _source(self, block: FindingBlock, room: int) -> Iterator[str]:
        """The line of a finding, if there is room and no diff shows it."""
        if block.is_edited or room < 1:
            return
        for line in excerpt(block.finding, 0, 0):
            yield f"{line.number:>6} |     {line.text}"
            if line.carets and room > 1:
                yield f"{'':6} |     {line.carets}"

    def _draft(self, block: FindingBlock) -> Iterator[str]:
        """The diff of a finding, without the names of its own file."""
        lines = [*self._diff(block.diff)] if block.draft else []
        own = {each.file for each in block.changes} == {block.finding.file}
        heads = next((i for i, text in enumerate(lines) if "@@ -" in text), 0)
        yield from (INDENT + line for line in lines[heads if own else 0 :])

    def _diff(self, block: Diff) -> Iterator[str]:
        for line in block.text.rstrip("\n").split("\n"):
            head = line.startswith(("---", "+++"))
            yield self._tinted(line, "file" if head else line[:1])

    def _fix(self, block: FixBlock) -> Iterator[str]:
        fix = block.fix
        yield f"{block.place}  {', '.join(fix.codes)} {self._tinted(fix.tier)}"
        yield from self._wrap(fix.title, INDENT)
        if fix.diff:
            yield from ("", *self._diff(block.diff), "")
        proved = f"proved: {block.proof}" if fix.receipt else ""
        for text in (proved, block.written):
            yield from self._wrap(text, INDENT, INDENT * 2)


def _facts(block: Facts, width: int) -> Iterator[str]:
    """Names in a column before their values."""
    size = min(12, max(len(name) for name, _ in block.facts))
    for name, value in block.facts:
        yield from wrap(plain(value), width, f"{name:{size}}  ", " " * (size + 2))


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _aligned(cells: Sequence[str], sizes: Sequence[int], header: Sequence[str]) -> str:
    """Names aligned to the left, numbers to the right."""
    return "  ".join(
        f"{cell:>{size}}" if is_number(name) else f"{cell:<{size}}"
        for cell, size, name in zip(cells, sizes, header, strict=True)
    ).rstrip()


def _in_words(header: Sequence[str], row: Sequence[str]) -> str:
    """For a terminal that is too narrow for columns."""
    pairs = zip(header[1:], row[1:], strict=True)
    return ", ".join(f"{n} {cell}" for n, cell in pairs if cell != numbers.UNKNOWN)


def _drawn(bar: Bar, length: int) -> str:
    """Solid up to the interval and shaded over it, accurate to an eighth of a cell.

    An interval within one cell is too short to draw: the bar then ends at the median.
    """
    middle = bar.length / 100 * length
    low, high = (edge / 100 * length for edge in bar.whisker or (bar.length,) * 2)
    solid, last = int(low), min(length - 1, int(high))
    if last > solid:
        return _FULL * solid + _SHADE * (last - solid + 1)
    eighths = min(length * 8, round(middle * 8))
    part = _EIGHTHS[eighths % 8] if eighths % 8 else ""
    return _FULL * (eighths // 8) + part
