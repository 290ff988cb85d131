"""The parts of pages that show saved runs: published steps, load tests, examples.

A published row is one run of `torchproof bench`, so that its ratios are of times that
were taken side by side. A measurement is published only if its outputs were compared
with eager's and it comes from at least five processes. Others are listed with the
reason, without numbers.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tables import NOTHING, ROOT, fenced, plain, render

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import getting_started
import load_runs
from check_runs import FULL, ITEM, SIZE, check

from benchmarks import load_tests, published
from torchproof.measure import exclusion_reason, side_by_side
from torchproof.measure.loadtest.results import judge_result
from torchproof.records import LoadResult, LoadTest, Percentile, store
from torchproof.records.run import Measurement, Run
from torchproof.report import markdown, numbers
from torchproof.report import render as report
from torchproof.report.document import Section
from torchproof.report.finding_block import Findings, blocks

UNPUBLISHED = "Nothing is published: `python -m benchmarks.published` measures it."


class Refusal(Enum):
    """Why a measurement is not published."""

    NOT_RANKED = "it has no result"
    NOT_VERIFIED = "its outputs were not compared with eager's"
    FEW_PROCESSES = f"it comes from fewer than {published.PROCESSES} processes"
    NO_INTERVAL = "it has no interval over processes"
    NO_EAGER = "eager itself is not published"


def refusal(row: Measurement) -> Refusal | None:
    if row.is_unverified:
        return Refusal.NOT_VERIFIED
    if exclusion_reason(row) is not None:
        return Refusal.NOT_RANKED
    if (row.processes or 0) < published.PROCESSES:
        return Refusal.FEW_PROCESSES
    known = [row.low_ms, row.high_ms]
    if row.strategy != "eager":
        known += [row.vs_eager_low, row.vs_eager_high]
    is_known = None not in known and row.interval_over == "processes"
    return None if is_known else Refusal.NO_INTERVAL


@dataclass(frozen=True)
class Step:
    """A published step; without a sound measurement of eager it has no rows."""

    title: str
    run: Run

    @property
    def rows(self) -> list[Measurement]:
        sound = [row for row in self.run.measurements if refusal(row) is None]
        return sound if any(row.strategy == "eager" for row in sound) else []

    @property
    def refused(self) -> list[tuple[Measurement, str]]:
        without = None if self.rows else Refusal.NO_EAGER
        found = [(row, refusal(row) or without) for row in self.run.measurements]
        return [
            (row, exclusion_reason(row) or str(why.value)) for row, why in found if why
        ]

    def row(self, strategy: str) -> Measurement | None:
        return next((row for row in self.rows if row.strategy == strategy), None)

    @property
    def mode(self) -> Measurement | None:
        """The fastest mode of torch.compile that was measured."""
        return _fastest(r for r in self.rows if r.strategy.split(":")[0] == "full")

    @property
    def graph(self) -> Measurement | None:
        """The fastest of torchproof's graphs of whole steps."""
        return _fastest(row for row in self.rows if "+graph" in row.strategy)

    @property
    def device(self) -> str:
        where = self.run.environment
        name = f"CPU, {where.get('machine')}, {where.get('cores')} cores"
        if where.get("device") == "cuda":
            name = str(where.get("gpu"))
        return f"{name}, torch {where.get('torch')}"


def _fastest(rows: Iterable[Measurement]) -> Measurement | None:
    return min(rows, key=lambda row: row.median_ms or 0.0, default=None)


def command_of(run: Run) -> str:
    """The command that repeats a run; older runs name a flag that has been renamed."""
    return run.command.partition(" --format")[0].replace("--sittings", "--repeats")


def stored() -> list[Step]:
    """The steps that were measured, in the order of the tables."""
    folder = published.SURVEY.path()
    paths = {row.title: folder / f"{row.name}.json" for row in published.ROWS}
    return [Step(t, store.read(path)) for t, path in paths.items() if path.is_file()]


def sound() -> list[Step]:
    """The steps with something to publish."""
    return [step for step in stored() if step.rows]


def measured() -> str:
    """Each step with the ratio to the best mode of the same run; then the commands."""
    found = sound()
    if not found:
        return UNPUBLISHED
    titles = "step | eager | `torch.compile` | its best mode | torchproof"
    titles += " | torchproof vs eager | torchproof vs best mode"
    cells = [
        (
            *(step.title, _ms(step.row("eager")), _with_gain(step.row("full"))),
            *(_named(step.mode, "full:"), _named(step.graph), _gain(step.graph)),
            _against(step.mode, step.graph),
        )
        for step in found
    ]
    return render(
        "measured",
        table=plain(titles, cells),
        devices=dict.fromkeys(step.device for step in found),
        processes=published.PROCESSES,
        commands={step.title: command_of(step.run) for step in found},
    )


def _against(mode: Measurement | None, graph: Measurement | None) -> str:
    ratio = side_by_side(mode, graph) if mode and graph else None
    return numbers.times(ratio.value, ratio.low, ratio.high) if ratio else NOTHING


def _ms(row: Measurement | None) -> str:
    return numbers.milliseconds(row.median_ms if row else None)


def _gain(row: Measurement | None) -> str:
    if row is None:
        return NOTHING
    return numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high)


def _with_gain(row: Measurement | None) -> str:
    if row is None:
        return NOTHING
    clear = row.verdict != "not significant"
    return f"{_ms(row)}, {f'{row.vs_eager:.2f}x' if clear else row.verdict}"


def _named(row: Measurement | None, prefix: str = "") -> str:
    if row is None:
        return NOTHING
    name = row.strategy.removeprefix(prefix)
    return f"{_ms(row)} (`{'default' if name == 'full' and prefix else name}`)"


def steps() -> str:
    """Every measurement that is published."""
    titles = "what | strategy | step | interval | vs eager | numerics | processes"
    titles += " | memory | kernels a step | share of the step they fill"
    cells = [_step(step.title, row) for step in sound() for row in step.rows]
    return plain(titles, cells) if cells else UNPUBLISHED


def _step(title: str, row: Measurement) -> tuple[str, ...]:
    kernels = row.kernels or {}
    return (
        *(title, row.strategy, _ms(row)),
        numbers.interval(row.low_ms, row.high_ms),
        "reference" if row.strategy == "eager" else _gain(row),
        str((row.numerics or {}).get("verdict") or NOTHING),
        numbers.count(row.processes),
        numbers.size(row.peak_bytes),
        numbers.count(kernels.get("per_step")),
        numbers.share(kernels.get("busy_share")),
    )


def not_published() -> str:
    """Measurements without numbers, and why."""
    found = [
        (step.title, f"`{row.strategy}`", why)
        for step in stored()
        for row, why in step.refused
    ]
    if found:
        return plain("what | strategy | why it is not in the table", found)
    return "Every strategy that was measured is in the table."


def commands() -> str:
    cells = [(s.title, s.device, f"`{command_of(s.run)}`") for s in sound()]
    return plain("what | where | command", cells) if cells else UNPUBLISHED


def modes() -> str:
    """A row for each step, a column for each strategy: one run, one row."""
    found = sound()
    if not found:
        return UNPUBLISHED
    names = dict.fromkeys(row.strategy for step in found for row in step.rows)
    names.pop("eager", None)
    cells = [
        (step.title, _ms(step.row("eager")), *(_with_gain(step.row(n)) for n in names))
        for step in found
    ]
    devices = "; ".join(dict.fromkeys(step.device for step in found))
    shown = plain(["what", "eager", *(f"`{name}`" for name in names)], cells)
    return f"{shown}\n\nMeasured on: {devices}."


# -- load tests ------------------------------------------------------------------------

_LEAST_SHARE = 0.05  # of a cause that is named
_TITLES = {
    "bert": "BERT with requests of 16 to 512 tokens",
    "gpt": "The bundled GPT with six shapes",
    "nanovlm": "nanoVLM with varying numbers of images",
}


def load_section(device: str) -> str:
    """All rows that were measured on a device."""
    folder = load_tests.SURVEY.path()
    paths = {name: folder / f"{name}-{device}.json" for name in load_tests.ROWS}
    parts = [
        f"### {_TITLES[name]}\n\n{_load(path)}"
        for name, path in paths.items()
        if path.exists()
    ]
    return "\n\n".join(parts) or "No row has been measured."


def _load(path: Path) -> str:
    run = Run.from_json(json.loads(path.read_text()))
    test, facts = run.load_test, run.environment
    assert test is not None and test.objective is not None
    titles = (
        *("strategy", "first answer", "cold phase: ends, requests over the limit"),
        *("p50", "p99"),
        *("answers within the limit", "objective", "largest causes of slow requests"),
    )
    cells = [_load_cells(row, test) for row in test.results if row.answered]
    where = f"CPU ({facts['machine']}), {facts.get('threads')} threads"
    return render(
        "load",
        run=run,
        test=test,
        where=facts.get("gpu") or where,
        table=plain(titles, cells),
    )


def _load_cells(row: LoadResult, test: LoadTest) -> tuple[str, ...]:
    first, rate, cold = row.first_answer_after_s, row.goodput_rate, row.cold
    within = NOTHING
    if rate is not None:
        within = f"{rate:.1f}/s; {row.answered} of {test.planned} answered"
    ends = "did not end"
    if cold is not None and cold.end_s is not None:
        ends = f"{cold.end_s:.1f} s, {cold.missed} of {cold.requests}"
    objective = NOTHING
    if row.verdict is not None and test.objective is not None:
        objective = judge_result(row, test.objective, workers=test.workers).verdict
    return (
        f"`{row.strategy}`",
        NOTHING if first is None else f"{first:.2f} s",
        ends,
        *_percentiles(row.latency),
        within,
        objective,
        "; ".join(_causes(row)) or NOTHING,
    )


def _percentiles(found: tuple[Percentile, ...]) -> tuple[str, str]:
    known = {each.percent: each.value_ms for each in found}
    p50, p99 = (
        NOTHING if (value := known.get(percent)) is None else f"{value:.3g} ms"
        for percent in (50.0, 99.0)
    )
    return p50, p99


def _causes(row: LoadResult) -> Iterator[str]:
    """The largest cause while cold, and after that."""
    tails = {"cold": row.cold.tail if row.cold else None, "warm": row.tail}
    for phase, tail in tails.items():
        cause = tail.causes[0] if tail is not None and tail.causes else None
        if cause is not None and (cause.share or 0.0) >= _LEAST_SHARE:
            yield f"{phase}: {cause.code} {cause.text}, {cause.share:.0%}"


# -- examples --------------------------------------------------------------------------


def bench_output() -> str:
    """What `bench` printed: the bars, the details of a strategy, and the decision."""
    run = getting_started.saved("bench")
    text = report(run, "text").rstrip("\n")
    header, bars, costs, *rows = text.split("\n\nDecision:")[0].split("\n\n")
    details = next((row for row in rows if row.startswith("full:")), "...")
    end = text[text.index("Decision:") :]
    command = f"$ {command_of(run)}"
    return fenced(
        "\n\n".join([command, header, bars, costs, "...", details, "...", end])
    )


def tune_output() -> str:
    return fenced(report(getting_started.saved("tune"), "text").rstrip("\n"))


def sarif() -> str:
    result = json.loads(report(FULL, "sarif"))["runs"][0]["results"][0]
    physical = result["locations"][0]["physicalLocation"]
    del physical["contextRegion"], result["properties"]
    result["message"]["text"] = result["message"]["text"].partition(". ")[0] + ". ..."
    return fenced(json.dumps(result, indent=1), "json")


def finding() -> str:
    """One finding as Markdown shows it."""
    block, *_ = blocks(FULL)
    return markdown.render([Section("", (Findings((block,)),))])


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"measured": measured},
    "docs/bench.md": {"bench": bench_output},
    "docs/decide.md": {"modes": modes},
    "docs/getting-started.md": getting_started.TABLES,
    "docs/loadtest.md": {
        "loadtest": lambda: fenced(report(load_runs.run(), "text").rstrip())
    },
    "docs/show.md": {
        # Indented, since it has blocks of code of its own.
        "finding": lambda: textwrap.indent(finding().rstrip(), "    "),
        "sarif": sarif,
        "github": lambda: fenced(report(check(ITEM, SIZE), "github").rstrip()),
        "agent": lambda: fenced(report(check(ITEM, SIZE), "agent").rstrip()),
    },
    "docs/tune.md": {"tune": tune_output},
    "docs/reference/load-tests.md": {
        "cuda": lambda: load_section("cuda"),
        "cpu": lambda: load_section("cpu"),
    },
    "docs/reference/results.md": {
        "commands": commands,
        "steps": steps,
        "not published": not_published,
    },
}
