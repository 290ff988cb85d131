"""The tables in docs/reference/results.md of `tune` against exhaustive search.

In come the runs that `benchmarks.tuning` wrote, two for a row; out go Markdown tables.
Where a search was not made there are dashes.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import Step
from benchmarks.tuning import RESULTS, SEARCHES, Work
from benchmarks.whole_step import STEPS
from torchproof.records import store
from torchproof.records.run import Run
from torchproof.report import markdown, numbers

Trial = dict[str, Any]


@dataclass(frozen=True)
class Row:
    step: Step
    runs: dict[str, Run]

    def search(self, name: str) -> dict[str, Any]:
        tuning = self.runs[name].tuning if name in self.runs else None
        return tuning.to_json() if tuning else {}

    def trials(self, search: str) -> dict[str, Trial]:
        """By name, those that were measured and right."""
        return {
            trial["name"]: trial
            for trial in self.search(search).get("trials", ())
            if trial["outcome"] == "measured" and trial["step_ms"]
        }

    @property
    def best(self) -> Trial | None:
        """Of all that the exhaustive search measured, the shortest step."""
        found = self.trials("exhaustive").values()
        return min(found, key=lambda trial: trial["step_ms"], default=None)


def read(folder: Path = RESULTS) -> list[Row]:
    rows = []
    for step in STEPS:
        paths = {name: Work(step, name).path(folder) for name in SEARCHES}
        runs = {name: store.read(p) for name, p in paths.items() if p.is_file()}
        rows += [Row(step, runs)] if runs else []
    return rows


def choices() -> str:
    """What was chosen, and how far that is from the best that exhaustion found."""
    header = ["what", "tune's choice", "against eager", "best of exhaustive"]
    header += ["choice / best", "in one search", "tune", "exhaustive", "share"]
    return markdown.table(header, map(_choice, read()))


def _choice(row: Row) -> tuple[str, ...]:
    tuned, full = row.search("tuned"), row.search("exhaustive")
    chosen = row.trials("tuned").get(tuned.get("chosen") or "")
    both = row.trials("exhaustive").get(tuned.get("chosen") or "")
    ratio = within = share = numbers.UNKNOWN
    if chosen and row.best:
        ratio = f"{chosen['step_ms'] / row.best['step_ms']:.2f}"
    if both and row.best:
        within = f"{both['step_ms'] / row.best['step_ms']:.2f}"
    if tuned and full:
        share = f"{tuned['spent_s'] / full['spent_s']:.2f}"
    return (
        row.step.title,
        _named(chosen),
        _times(chosen),
        _named(row.best),
        ratio,
        within,
        _spent(tuned),
        _spent(full),
        share,
    )


def gains() -> str:
    """Against eager, torch.compile and its best mode, within the exhaustive search."""
    header = ["what", "tune's choice", "against eager", "against torch.compile"]
    header += ["against its best mode"]
    rows = [_gain(row) for row in read()]
    means = [
        _mean(column) for column in zip(*(found for _, found in rows), strict=True)
    ]
    lines = [(*told, *map(_ratio, found)) for told, found in rows]
    if means:
        lines.append(("geometric mean", "", *map(_ratio, means)))
    return markdown.table(header, iter(lines))


def _gain(row: Row) -> tuple[tuple[str, str], list[float | None]]:
    """Times of one search: the exhaustive one, which measured them all."""
    name = row.search("tuned").get("chosen") or numbers.UNKNOWN
    trials = row.trials("exhaustive") or row.trials("tuned")
    chosen = trials.get(name)
    modes = [t for n, t in trials.items() if n.partition(":")[0] == "full"]
    mode = min(
        (t for t in modes if "," not in t["name"]),
        key=lambda trial: trial["step_ms"],
        default=None,
    )
    found = [trials.get("eager"), trials.get("full"), mode]
    ratios = [t["step_ms"] / chosen["step_ms"] if t and chosen else None for t in found]
    return (row.step.title, name), ratios


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def conditions() -> str:
    runs = [run for row in read() for run in row.runs.values()]
    if not runs:
        return "Not measured."
    facts = runs[0].environment
    tried = ", ".join(
        f"{row.step.title}: {len(search['trials']) - 1} trials,"
        f" {len(search['skipped'])} left out ({search['stopped']})"
        for row in read()
        if (search := row.search("exhaustive"))
    )
    return (
        f"{facts['gpu']}, torch {facts['torch']}, Python {facts['python']}. Searched"
        f" exhaustively: {tried}. The command: `python -m benchmarks.tuning`."
    )


def _named(trial: Trial | None) -> str:
    if trial is None:
        return numbers.UNKNOWN
    return f"{trial['name']}, {numbers.milliseconds(trial['step_ms'])}"


def _times(trial: Trial | None) -> str:
    if trial is None:
        return numbers.UNKNOWN
    low, high = trial["vs_eager_low"], trial["vs_eager_high"]
    return numbers.times(trial["vs_eager"], low, high)


def _spent(search: dict[str, Any]) -> str:
    return f"{search['spent_s']:.0f} s" if search else numbers.UNKNOWN


def _ratio(value: float | None) -> str:
    return numbers.UNKNOWN if value is None else f"{value:.2f}x"


TABLES = {
    "tuned choices": choices,
    "tuned gains": gains,
    "tuned conditions": conditions,
}
