"""The tables of step times in README.md, docs/decide.md and docs/reference/results.md.

In come the runs of `torchproof bench` that `benchmarks.published` keeps, one for a row;
each row is one run, so that its ratios are of times that were taken side by side. A
measurement is published only if its outputs were compared with eager's and it comes
from at least five processes. Others are listed with the reason, without numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import published
from torchproof.measure import exclusion_reason, side_by_side
from torchproof.records import store
from torchproof.records.run import Measurement, Run
from torchproof.report import markdown, numbers

NOTHING = "Nothing is published: `python -m benchmarks.published` measures it."


class Refusal(Enum):
    """Why a measurement is not published."""

    NOT_RANKED = "it has no result"
    NOT_VERIFIED = "its outputs were not compared with eager's"
    FEW_PROCESSES = f"it comes from fewer than {published.PROCESSES} processes"
    NO_INTERVAL = "it has no interval over processes"
    NO_EAGER = "eager itself is not published"


def refusal(arm: Measurement) -> Refusal | None:
    if arm.is_unverified:
        return Refusal.NOT_VERIFIED
    if exclusion_reason(arm) is not None:
        return Refusal.NOT_RANKED
    if (arm.processes or 0) < published.PROCESSES:
        return Refusal.FEW_PROCESSES
    known = [arm.low_ms, arm.high_ms]
    if arm.strategy != "eager":
        known += [arm.vs_eager_low, arm.vs_eager_high]
    is_known = None not in known and arm.interval_over == "processes"
    return None if is_known else Refusal.NO_INTERVAL


@dataclass(frozen=True)
class Row:
    """A published step. Without a sound measurement of eager it has no arms."""

    title: str
    run: Run

    @property
    def arms(self) -> list[Measurement]:
        sound = [arm for arm in self.run.measurements if refusal(arm) is None]
        return sound if any(arm.strategy == "eager" for arm in sound) else []

    @property
    def refused(self) -> list[tuple[Measurement, str]]:
        without = None if self.arms else Refusal.NO_EAGER
        found = [(arm, refusal(arm) or without) for arm in self.run.measurements]
        return [
            (arm, exclusion_reason(arm) or str(why.value)) for arm, why in found if why
        ]

    def arm(self, strategy: str) -> Measurement | None:
        return next((arm for arm in self.arms if arm.strategy == strategy), None)

    @property
    def mode(self) -> Measurement | None:
        """The fastest mode of torch.compile that was measured."""
        return _fastest(a for a in self.arms if a.strategy.split(":")[0] == "full")

    @property
    def graph(self) -> Measurement | None:
        """The fastest of torchproof's graphs of whole steps."""
        return _fastest(a for a in self.arms if "+graph" in a.strategy)

    @property
    def command(self) -> str:
        return self.run.command.partition(" --format")[0]

    @property
    def device(self) -> str:
        where = self.run.environment
        name = f"CPU, {where.get('machine')}, {where.get('cores')} cores"
        if where.get("device") == "cuda":
            name = str(where.get("gpu"))
        return f"{name}, torch {where.get('torch')}"


def _fastest(arms: Iterable[Measurement]) -> Measurement | None:
    return min(arms, key=lambda arm: arm.median_ms or 0.0, default=None)


def kept() -> list[Row]:
    """The rows that were measured, in the order of the tables."""
    paths = {row: published.RESULTS / f"{row.name}.json" for row in published.ROWS}
    return [
        Row(row.title, store.read(path))
        for row, path in paths.items()
        if path.is_file()
    ]


def rows() -> list[Row]:
    """The rows with something to publish."""
    return [row for row in kept() if row.arms]


# -- README.md -------------------------------------------------------------------------


def measured() -> str:
    """Each row with the ratio to the best mode of the same run; then the commands."""
    found = rows()
    if not found:
        return NOTHING
    header = ["step", "eager", "`torch.compile`", "its best mode", "torchproof"]
    header += ["torchproof vs eager", "torchproof vs best mode"]
    table = markdown.table(header, map(_measured, found))
    devices = "; ".join(dict.fromkeys(row.device for row in found))
    commands = "\n".join(f"- {row.title}: `{row.command}`" for row in found)
    return (
        f"{table}\n\nMeasured on: {devices}. Medians, with ratios to eager. A ratio"
        " above 1 is faster; its 95 percent interval is over"
        f" {published.PROCESSES} processes of each strategy. The best mode is the"
        " fastest of those that the command names. The commands, in a checkout:"
        f"\n\n{commands}"
    )


def _measured(row: Row) -> tuple[str, ...]:
    graph, mode = row.graph, row.mode
    return (
        row.title,
        _ms(row.arm("eager")),
        _with_gain(row.arm("full")),
        _named(mode, "full:"),
        _named(graph),
        _gain(graph),
        _against(mode, graph),
    )


def _against(mode: Measurement | None, graph: Measurement | None) -> str:
    ratio = side_by_side(mode, graph) if mode and graph else None
    return (
        numbers.times(ratio.value, ratio.low, ratio.high) if ratio else numbers.UNKNOWN
    )


def _ms(arm: Measurement | None) -> str:
    return numbers.milliseconds(arm.median_ms if arm else None)


def _gain(arm: Measurement | None) -> str:
    if arm is None:
        return numbers.UNKNOWN
    return numbers.times(arm.vs_eager, arm.vs_eager_low, arm.vs_eager_high)


def _with_gain(arm: Measurement | None) -> str:
    if arm is None:
        return numbers.UNKNOWN
    clear = arm.verdict != "not significant"
    return f"{_ms(arm)}, {f'{arm.vs_eager:.2f}x' if clear else arm.verdict}"


def _named(arm: Measurement | None, prefix: str = "") -> str:
    if arm is None:
        return numbers.UNKNOWN
    name = arm.strategy.removeprefix(prefix)
    return f"{_ms(arm)} (`{'default' if name == 'full' and prefix else name}`)"


# -- docs/reference/results.md ---------------------------------------------------------


def steps() -> str:
    """Every measurement that is published."""
    if not rows():
        return NOTHING
    header = ["what", "strategy", "step", "interval", "vs eager", "numerics"]
    header += ["processes", "memory", "kernels a step", "share of the step they fill"]
    return markdown.table(header, _steps())


def _steps() -> Iterator[tuple[str, ...]]:
    for row in rows():
        for arm in row.arms:
            kernels = arm.kernels or {}
            yield (
                row.title,
                arm.strategy,
                _ms(arm),
                numbers.interval(arm.low_ms, arm.high_ms),
                "reference" if arm.strategy == "eager" else _gain(arm),
                str((arm.numerics or {}).get("verdict") or numbers.UNKNOWN),
                numbers.count(arm.processes),
                numbers.size(arm.peak_bytes),
                numbers.count(kernels.get("per_step")),
                numbers.share(kernels.get("busy_share")),
            )


def not_published() -> str:
    """Measurements without numbers, and why."""
    if not kept():
        return NOTHING
    found = [
        (row.title, f"`{arm.strategy}`", why)
        for row in kept()
        for arm, why in row.refused
    ]
    if not found:
        return "Every strategy that was measured is in the table."
    return markdown.table(["what", "strategy", "why it is not in the table"], found)


def commands() -> str:
    if not rows():
        return NOTHING
    listed = ((row.title, row.device, f"`{row.command}`") for row in rows())
    return markdown.table(["what", "where", "command"], listed)


# -- docs/decide.md --------------------------------------------------------------------


def modes() -> str:
    """A row for each step, a column for each strategy: one run, one row."""
    found = rows()
    if not found:
        return NOTHING
    names = dict.fromkeys(arm.strategy for row in found for arm in row.arms)
    names.pop("eager", None)
    table = markdown.table(
        ["what", "eager", *(f"`{name}`" for name in names)],
        (
            (row.title, _ms(row.arm("eager")), *(_with_gain(row.arm(n)) for n in names))
            for row in found
        ),
    )
    devices = "; ".join(dict.fromkeys(row.device for row in found))
    return f"{table}\n\nMeasured on: {devices}."


README: dict[str, Callable[[], str]] = {"measured": measured}
RESULTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "steps": steps,
    "not published": not_published,
}
DECIDE: dict[str, Callable[[], str]] = {"modes": modes}
