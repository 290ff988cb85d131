"""Drafts a retrospective: the expectations of a plan and what later runs measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchproof.records import Run
from torchproof.report import numbers, run_words
from torchproof.report.log import expectations
from torchproof.report.log.entry_markdown import Draft
from torchproof.report.log.expectations import Expectation
from torchproof.report.log.log_entries import DATE, Entry
from torchproof.report.markup import bullets, code, prose, table

LEARNED = "What we learned: (write here)"
_COLUMNS = ("graph_breaks", "recompiles", "findings", "speed")
_RUNS = (
    "Run",
    "Verb",
    "Target",
    "Graph breaks",
    "Recompiles",
    "Open findings",
    "Best vs eager",
)
_MOST = 30  # the latest runs, listed one by one


def draft(plan: Entry, runs: Sequence[Run]) -> Draft:
    """The entry for a plan and the runs since, oldest first."""
    expected = expectations.read(plan.section("Expected"))
    rows = [_row(each, runs) for each in expected]
    name = plan.id or plan.title
    header = ("Expected", "Measured", "Verdict", "Run")
    figures = [table(header, rows) if rows else "", _runs(runs)]
    return Draft(
        kind="Retrospective",
        title=plan.title or name,
        sentence=_sentence(plan, runs, [row[2] for row in rows]),
        facts=(("Plan", f"{code(name)}, of {plan.written:{DATE}}"),),
        sections=(
            ("Details", _details(plan, runs)),
            ("Key figures", "\n\n".join(filter(None, figures))),
            ("Learned", LEARNED),
            ("Artifacts", bullets(f"{code(f'torchproof show {r.id}')}" for r in runs)),
        ),
    )


def since(plan: Entry, runs: Sequence[Run]) -> list[Run]:
    """Runs that started after the plan, of its target if it names one."""
    target = plan.named("Target")
    written = plan.written.isoformat(timespec="seconds")
    return sorted(
        (
            run
            for run in runs
            if run.started and run.started >= written and target in (None, run.target)
        ),
        key=lambda run: run.started,
    )


def _row(expected: Expectation, runs: Sequence[Run]) -> tuple[str, str, str, str]:
    """The verdict of an expectation, from the last run that measured it."""
    for run in reversed(runs):
        measured = expected.metric and expectations.value(run, expected.metric)
        if measured:
            verdict = expectations.verdict(expected, measured)
            return prose(expected.text), measured.text, verdict, code(run.id)
    return prose(expected.text), numbers.UNKNOWN, "not measured", numbers.UNKNOWN


def _sentence(plan: Entry, runs: Sequence[Run], verdicts: Sequence[str]) -> str:
    about = f'The plan "{plan.title or plan.id}"'
    counted = numbers.amount(len(runs), "run")
    if not runs:
        return f"{about} has no measurements: no run was saved since."
    if not verdicts:
        return f"{about} has no expectations; {counted} since."
    split = Counter(verdicts)
    tally = [f"{split[word]} {word}" for word in dict.fromkeys(sorted(verdicts))]
    expected = numbers.amount(len(verdicts), "expectation")
    return f"{about} has {expected}: {', '.join(tally)}; {counted} since."


def _details(plan: Entry, runs: Sequence[Run]) -> str:
    lines = [f"planned: {text}" for text in plan_text(plan)[:1]]
    if target := plan.named("Target"):
        lines.append(f"only runs of {code(target)} count")
    broken = filter(run_words.incomplete, runs)
    lines += [
        f"{code(run.id)} is incomplete and does not count:"
        f" {prose(run.error or run.ending)}"
        for run in broken
    ]
    return bullets(lines)


def plan_text(plan: Entry) -> list[str]:
    """The description of the plan, as its author wrote it."""
    mark = "**General description:**"
    return [t.removeprefix(mark).strip() for t in plan.lines if t.startswith(mark)]


def _runs(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    listed = runs[-_MOST:]
    title = "Runs since the plan, oldest first:"
    if len(runs) > _MOST:
        title = f"The last {_MOST} of {len(runs)} runs since the plan:"
    rows = [
        (code(r.id), r.verb, code(r.target), *(_cell(r, m) for m in _COLUMNS))
        for r in listed
    ]
    return f"{title}\n\n{table(_RUNS, rows)}"


def _cell(run: Run, metric: str) -> str:
    measured = expectations.value(run, metric)
    return measured.text if measured else numbers.UNKNOWN
