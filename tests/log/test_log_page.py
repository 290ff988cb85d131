"""Entries of the log as they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import bench_runs

from torchproof.cli.commands import Log
from torchproof.records.run import Baseline, Finding, Run
from torchproof.report import log
from torchproof.report.log import (
    entry_markdown,
    expectations,
    observation,
    review,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "log.md"
BREAK = Finding(
    "GB102",
    "graph_break",
    "high",
    "`y.sum() > 0` splits the graph of Net.forward, in every call",
    "",
    "",
    file="model.py",
    line=12,
    status="resolved",
)


def measured() -> Run:
    rows = (bench_runs.row("eager", 1.0), bench_runs.row("full", 0.8))
    return Run(
        id="20260201-1530-model",
        target="model.py:make",
        strategy="full",
        environment=bench_runs.ENVIRONMENT,
        counts={"calls": 3, "compiled_calls": 3, "graphs": 1, "graph_breaks": 0},
        findings=(BREAK,),
        measurements=rows,
        baseline=Baseline(
            id="20260130-1105-model",
            counts={"calls": 3, "compiled_calls": 3, "graphs": 2, "graph_breaks": 1},
            findings={"high": 1, "medium": 0, "low": 0},
        ),
        command="torchproof check model.py:make",
        started="2026-02-01T15:30:12",
    )


def with_findings(count: int) -> Run:
    opened = replace(BREAK, status="open", cost_us=33.25)
    return replace(
        measured(),
        findings=tuple(replace(opened, line=number) for number in range(1, count + 1)),
        environment={**bench_runs.ENVIRONMENT, "variables": {"OMP_NUM_THREADS": 2}},
        baseline=None,
    )


def sentences() -> Iterator[str]:
    """How entries of other runs begin."""
    run = replace(measured(), findings=(), measurements=(), baseline=None)
    wrong = bench_runs.row("regional", 0.2, **bench_runs.WRONG)
    for each in (
        run,
        replace(run, ending="timeout"),
        replace(run, environment={}, counts={}),
        bench_runs.bench([*measured().measurements, wrong]),
        bench_runs.bench([bench_runs.row("eager", 1.0)]),
    ):
        yield f"{observation.sentence(each)}\n"


def shown() -> dict[str, str]:
    wanted = expectations.parse("graph_breaks=0,speed>=1.2,first_call_s<=5")
    plan = entry_markdown.Draft(
        "Plan",
        "Compile the step whole, without the branch",
        "Compile the step whole, without the branch",
        (("Target", "`model.py:make`"),),
        (("Expected", "\n".join(each.line for each in wanted)),),
    ).text("20260131-0910-plan", datetime(2026, 1, 31, 9, 10, 2))
    (planned,) = log.entries(plan)
    back = review.draft(planned, [measured()])
    seen = observation.draft(measured(), ".torchproof/runs/20260201-1530-model")
    return {
        "plan": plan,
        "observation": seen.text(
            "20260201-1534-observation", datetime(2026, 2, 1, 15, 34, 40)
        ),
        "many findings": observation.draft(with_findings(14), "20260201").text(
            "20260201-1540-observation", datetime(2026, 2, 1, 15, 40, 3)
        ),
        "retrospective": back.text(
            "20260201-1610-retrospective", datetime(2026, 2, 1, 16, 10, 5)
        ),
        "sentences": "".join(sentences()),
    }


def test_entries_are_as_before(snapshot: Callable[[str, str], None]) -> None:
    snapshot("log/entries.md", "\n".join(shown().values()))


def test_page_shows_entries_as_they_are_written() -> None:
    blocks = re.findall(r"^```markdown\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert blocks and set(blocks) <= set(shown().values())


def test_the_page_names_every_metric_and_flag() -> None:
    text = PAGE.read_text()
    named = [
        *expectations.METRICS,
        *(flag for flags in Log.ACTIONS.values() for flag in flags),
    ]
    assert [name for name in named if not re.search(rf"`{name}\b", text)] == []
