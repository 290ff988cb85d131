"""The experiment log: what was planned, observed and learned, in one Markdown file.

Entries are added at the end, each dated when it is written; nothing that stands in the
file is changed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from torchproof.records import Run, UserError, store
from torchproof.report.log import expectations, observation, review
from torchproof.report.log.entry_markdown import Draft, code, items, own_words
from torchproof.report.log.log_entries import Entry, entries, find, open_block
from torchproof.report.log.log_file import DEFAULT, append, read

__all__ = ["DEFAULT", "Added", "add", "entries", "plan", "read", "retrospective"]


@dataclass(frozen=True)
class Added:
    """Where an entry is found again."""

    id: str
    kind: str
    line: int
    note: str = ""  # what the reader of the file should know


def add(path: Path, run: Run, *, came_from: str = "", again: bool = False) -> Added:
    """The observation of a run; a run that is in the log is not added twice."""

    def draft(text: str) -> Draft:
        for entry in () if again else entries(text):
            if _is_of(entry, run):
                raise UserError(
                    f"run {run.id} is in {path}, line {entry.line}: add it once more"
                    " with --again"
                )
        return observation.draft(run, came_from or run.id)

    return _write(path, draft)


def plan(path: Path, text: str, *, expect: str = "", target: str = "") -> Added:
    """What is to be tried, and what it is expected to give."""
    wanted = expectations.parse(expect)
    words = own_words(text)
    if not words:
        raise UserError("log plan needs a text: what will you try?")
    first, _, rest = words.partition("\n")
    facts = (("Target", code(target)),) if target else ()

    def draft(_: str) -> Draft:
        return Draft(
            kind="Plan",
            title=first,
            sentence=first,
            facts=facts,
            sections=(
                ("Details", rest.strip()),
                ("Expected", "\n".join(each.line for each in wanted)),
                ("Artifacts", _to_come(target)),
            ),
        )

    return _write(path, draft)


def retrospective(
    path: Path, runs: Sequence[Run], *, name: str | None = None, again: bool = False
) -> Added:
    """A draft from a plan, the last one or the one named, and the runs since."""

    def draft(text: str) -> Draft:
        planned = find(text, "Plan", name, str(path))
        for entry in () if again else entries(text):
            known = planned.id and entry.named("Plan") == planned.id
            if entry.kind == "Retrospective" and known:
                raise UserError(
                    f"{planned.id} has a retrospective in {path}, line {entry.line}:"
                    " draft another with --again"
                )
        every = [*runs, *_observed(text, runs)]
        return review.draft(planned, review.since(planned, every))

    return _write(path, draft)


def _write(path: Path, draft: Callable[[str], Draft]) -> Added:
    made: list[tuple[str, str, str]] = []

    def write(text: str) -> str:
        entry, at = draft(text), datetime.now()
        id = _free(f"{at:%Y%m%d-%H%M}-{entry.kind.lower()}", text)
        made.append((id, entry.kind, _note(text)))
        return entry.text(id, at)

    line = append(path, write)
    id, kind, note = made[-1]
    return Added(id, kind, line, note)


def _free(id: str, text: str) -> str:
    taken = {entry.id for entry in entries(text)}
    numbered = (f"{id}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([id], numbered) if name not in taken)


def _note(text: str) -> str:
    line = open_block(text)
    if line is None:
        return ""
    return (
        f"the code block that begins in line {line} is never closed, so readers show"
        " what follows as code"
    )


def _observed(text: str, runs: Sequence[Run]) -> Iterator[Run]:
    """Runs of other machines that were added to the log, and are still there."""
    known = {(run.id, run.started) for run in runs}
    for entry in entries(text):
        path = Path(entry.named("run") or "")
        if entry.kind == "Observation" and path.is_file():
            with contextlib.suppress(UserError):  # no longer a run
                run = store.read(path)
                if (run.id, run.started) not in known:
                    known.add((run.id, run.started))
                    yield run


def _is_of(entry: Entry, run: Run) -> bool:
    if entry.named("Run") != run.id:
        return False
    said = entry.fact("Run") or ""
    return "started" not in said or f"started {run.started or '-'}" in said


def _to_come(target: str) -> str:
    made = f"torchproof check {target}" if target else "torchproof check TARGET"
    return items(
        [
            f"to be made: runs, with {code(made)} and the like",
            f"then: {code('torchproof log retrospective')}",
        ]
    )
