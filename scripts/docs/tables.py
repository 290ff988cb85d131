"""One way from rows to Markdown: declared columns, and templates for the text around.

A column is a title and what a cell shows: a format string over the fields of a row
(`{added_us[quiet]:.1f}`), or a function of the row. What is missing is shown as `-`.
templates/NAME.md.j2 have sentences and tables of a part; `render` fills them in.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from torchproof.report import markup

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
NOTHING = "-"

Row = dict[str, Any]
Column = str | Callable[[Row], str]
Columns = Mapping[str, Column]


class _Cell(string.Formatter):
    """Formats fields of a row; a missing one makes the cell `-`."""

    def show(self, text: str, row: Row) -> str:
        try:
            return self.vformat(text, (), row)
        except (KeyError, TypeError, IndexError):
            return NOTHING

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise KeyError(format_spec)
        text: str = super().format_field(value, format_spec)
        return text


_CELL = _Cell()


def cell(column: Column, row: Row) -> str:
    if callable(column):
        return column(row)
    return _CELL.show(column, row)


def table(columns: Columns, rows: Iterable[Row]) -> str:
    """Rows under these columns; `NOTHING` without a row."""
    cells = [tuple(cell(each, row) for each in columns.values()) for row in rows]
    return plain(list(columns), cells)


def plain(titles: Sequence[str] | str, cells: Iterable[Sequence[str]]) -> str:
    """A table of cells that are text already; titles may be joined by bars."""
    named = titles.split(" | ") if isinstance(titles, str) else titles
    listed = [tuple(row) for row in cells]
    return markup.table(named, listed) if listed else NOTHING


def named(rows: Mapping[str, Row]) -> list[Row]:
    """The rows of a survey, each with its name."""
    return [{"name": name, **row} for name, row in rows.items()]


def result(name: str) -> Row:
    """A stored survey; without rows if there is none."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return {"rows": {}}
    document: Row = json.loads(path.read_text(encoding="utf-8"))
    return document


def device(found: Row) -> str:
    machine = found["machine"]
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    return str(machine.get("gpu") or f"CPU, {machine['arch']}{cores}")


def flat(text: str | None, longest: int = 0) -> str:
    """One line, cut off after so many characters."""
    line = " ".join((text or NOTHING).split())
    if not longest or len(line) <= longest:
        return line
    return f"{line[:longest]}...`" if line.startswith("`") else f"{line[:longest]}..."


def fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else NOTHING


def codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {"device": device, "codes": codes, "flat": flat}
FILTERS = _TEMPLATES.filters


def render(name: str, **values: Any) -> str:
    file = name if "." in name else f"{name}.md"
    return _TEMPLATES.get_template(f"{file}.j2").render(**values).strip("\n")
