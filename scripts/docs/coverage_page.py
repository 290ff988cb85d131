"""docs/reference/coverage.md: other tools' features and torchproof's counterparts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).with_name("coverage.toml")
HEAD = """\
# Coverage of other tools

<!-- Written by scripts/docs/coverage_page.py from scripts/docs/coverage.toml. -->

torchproof started from several published programs and guides around `torch.compile`.
This page lists their flags, helpers, tables and counters, each with the torchproof
command or call that replaces it. TARGET is [any target](../check.md#targets); the
programs are [at the end](#programs). A test runs every answer and looks for the row's
result in its output: in `make test`, in `make prove` if it measures for long, and on
a machine with CUDA if it needs that. Rows without a counterpart say so."""
NOT_SHOWN = ("cat ", "ls ", "sed ")  # what a test needs beside the commands
NONE = "-"


@dataclass(frozen=True)
class Answer:
    """Lines of a shell, or a program; `when` is test, slow or gpu."""

    name: str
    lines: tuple[str, ...]
    program: str
    shown: str
    target: str
    extra: str
    when: str

    @property
    def text(self) -> str:
        """What the page shows of it."""
        lines = [line for line in self.lines if not line.startswith(NOT_SHOWN)]
        return self.shown or "; ".join(f"`{line}`" for line in lines)

    def to_run(self) -> list[str]:
        """Its lines with a target; the last one of torchproof gets what is extra."""
        lines = [line.replace("TARGET", self.target) for line in self.lines]
        if self.extra:
            last = max(i for i, ln in enumerate(lines) if not ln.startswith(NOT_SHOWN))
            lines[last] += f" {self.extra}"
        return lines


@dataclass(frozen=True)
class Row:
    """What is named, what it gave, what answers it, and how that is seen."""

    named: str
    gave: str
    answer: str
    seen: str
    note: str


@dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class System:
    name: str
    about: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Guide:
    answers: Mapping[str, Answer]
    systems: tuple[System, ...]
    files: Mapping[str, str]

    @property
    def rows(self) -> list[Row]:
        return [r for s in self.systems for table in s.tables for r in table.rows]


def read() -> Guide:
    plain = tomllib.loads(DATA.read_text())
    answers = {
        name: Answer(
            name,
            tuple(given.get("lines", ())),
            given.get("program", "").lstrip("\n"),
            f"`{given['shown']}`" if "shown" in given else "",
            given.get("target", ""),
            given.get("extra", ""),
            given.get("when", "test"),
        )
        for name, given in plain["answers"].items()
    }
    systems = tuple(
        System(
            system["name"],
            system["about"],
            tuple(
                Table(table["title"], tuple(Row(*row) for row in table["rows"]))
                for table in system["tables"]
            ),
        )
        for system in plain["systems"]
    )
    return Guide(answers, systems, plain["files"])


def page() -> str:
    return "\n\n".join(_blocks(read())) + "\n"


def _blocks(guide: Guide) -> Iterator[str]:
    yield HEAD
    answered = sum(bool(row.answer) for row in guide.rows)
    yield (
        f"{len(guide.rows)} rows: {answered} have a counterpart, "
        f"{len(guide.rows) - answered} have none."
    )
    for system in guide.systems:
        yield f"## {system.name}"
        yield system.about
        for table in system.tables:
            yield f"### {table.title}"
            yield _table(table, guide.answers)
    yield "## Programs"
    for answer in guide.answers.values():
        if answer.program:
            yield answer.text
            # Not "python": each is a program of its own, run by the test of this page.
            yield f"```py\n{answer.program.rstrip()}\n```"


def _table(table: Table, answers: Mapping[str, Answer]) -> str:
    lines = ["| name | what it does | torchproof | note |", "|---|---|---|---|"]
    for row in table.rows:
        here = _marked(answers[row.answer]) if row.answer else NONE
        cells = (row.named, row.gave or NONE, here, row.note)
        lines.append(" ".join(f"| {' | '.join(map(_cell, cells))} |".split()))
    return "\n".join(lines)


def _marked(answer: Answer) -> str:
    return f"{answer.text} (CUDA)" if answer.when == "gpu" else answer.text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
