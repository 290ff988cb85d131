"""The experiment log: plans, observations and retrospectives in one Markdown file.

Entries are appended, each with the date of writing. Existing text never changes.
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
from torchproof.report.log.entry_markdown import Draft, own_words
from torchproof.report.log.log_entries import Entry, entries, find, open_block
from torchproof.report.log.log_file import DEFAULT, append, read
from torchproof.report.markup import bullets, code

__all__ = ["DEFAULT", "Added", "add", "entries", "plan", "read", "retrospective"]


@dataclass(frozen=True)
class Added:
    """The id, kind and line of an entry that was added."""

    id: str
    kind: str
    line: int
    note: str = ""  # a problem with the file


def add(path: Path, run: Run, *, came_from: str = "", again: bool = False) -> Added:
    """Adds the observation of a run; fails if the log has it, unless `again`."""

    def draft(text: str) -> Draft:
        for entry in () if again else entries(text):
            if _is_of(entry, run):
                raise UserError(
                    f"run {run.id} is already in {path}, line {entry.line}: use"
                    " --again to add it again"
                )
        return observation.draft(run, came_from or run.id)

    return _write(path, draft)


def plan(path: Path, text: str, *, expect: str = "", target: str = "") -> Added:
    """Adds a plan, with the expected results."""
    expected = expectations.parse(expect)
    words = own_words(text)
    if not words:
        raise UserError("log plan needs a text that describes the plan")
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
                ("Expected", "\n".join(each.line for each in expected)),
                ("Artifacts", _to_come(target)),
            ),
        )

    return _write(path, draft)


def retrospective(
    path: Path, runs: Sequence[Run], *, name: str | None = None, again: bool = False
) -> Added:
    """Drafts a retrospective from a plan (the last, or by name) and the runs since."""

    def draft(text: str) -> Draft:
        planned = find(text, "Plan", name, str(path))
        for entry in () if again else entries(text):
            same_plan = planned.id and entry.named("Plan") == planned.id
            if entry.kind == "Retrospective" and same_plan:
                raise UserError(
                    f"{planned.id} has a retrospective in {path}, line {entry.line}:"
                    " use --again to draft another"
                )
        every = [*runs, *_observed(text, runs)]
        return review.draft(planned, review.since(planned, every))

    return _write(path, draft)


def _write(path: Path, draft: Callable[[str], Draft]) -> Added:
    written: list[tuple[str, str, str]] = []

    def write(text: str) -> str:
        entry, at = draft(text), datetime.now()
        id = _free(f"{at:%Y%m%d-%H%M}-{entry.kind.lower()}", text)
        written.append((id, entry.kind, _note(text)))
        return entry.text(id, at)

    line = append(path, write)
    id, kind, note = written[-1]
    return Added(id, kind, line, note)


def _free(id: str, text: str) -> str:
    used_ids = {entry.id for entry in entries(text)}
    numbered = (f"{id}-{number}" for number in itertools.count(2))
    return next(
        name for name in itertools.chain([id], numbered) if name not in used_ids
    )


def _note(text: str) -> str:
    line = open_block(text)
    if line is None:
        return ""
    return (
        f"the code block in line {line} is never closed, so viewers show the rest of"
        " the file as code"
    )


def _observed(text: str, runs: Sequence[Run]) -> Iterator[Run]:
    """Runs of other machines that the log names and whose files still exist."""
    yielded = {(run.id, run.started) for run in runs}
    for entry in entries(text):
        path = Path(entry.named("run") or "")
        if entry.kind == "Observation" and path.is_file():
            with contextlib.suppress(UserError):  # no longer a run
                run = store.read(path)
                if (run.id, run.started) not in yielded:
                    yielded.add((run.id, run.started))
                    yield run


def _is_of(entry: Entry, run: Run) -> bool:
    if entry.named("Run") != run.id:
        return False
    fact = entry.fact("Run") or ""
    return "started" not in fact or f"started {run.started or '-'}" in fact


def _to_come(target: str) -> str:
    command = f"torchproof check {target}" if target else "torchproof check TARGET"
    return bullets(
        [
            f"next: runs, for example {code(command)}",
            f"then: {code('torchproof log retrospective')}",
        ]
    )
