"""The tables of whole steps in CUDA graphs, for docs/reference/results.md.

In come the runs that `benchmarks.whole_step` wrote, two for a row; out go Markdown
tables: what was reached of each goal, and every arm. A row that was not measured has
dashes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import results_tables

from benchmarks.side_by_side import Step
from benchmarks.whole_step import MODES, RESULTS, STEPS, Work
from torchproof.records import store
from torchproof.records.run import Measurement, Run
from torchproof.report import bench_sections, markdown, numbers

REDUCE_OVERHEAD = "full:reduce-overhead"
# Of the best mode's step, of reduce-overhead's first call, of the best mode's memory.
STEP_GOALS = {False: 0.85, True: 0.80}
FIRST_CALL_GOAL, MEMORY_GOAL = 0.4, 1.1
# What documents of ARR-COC claim against eager.
CLAIMS = {"arrcoc-inference": 6.0, "arrcoc-scorers": 2.75}
NOT_RANKED = ("failed", "skipped", "wrong", "fell back", "unverified")


@dataclass(frozen=True)
class Row:
    """One step with all that was measured of it."""

    step: Step
    runs: tuple[Run, ...]

    @property
    def arms(self) -> list[Measurement]:
        """Every arm once: what the first run has, the second repeats as a control."""
        found: dict[str, Measurement] = {}
        for run in self.runs:
            for arm in run.measurements:
                found.setdefault(arm.strategy, arm)
        return list(found.values())

    def arm(self, strategy: str) -> Measurement | None:
        for arm in self.arms:
            if arm.strategy == strategy and sound(arm):
                return arm
        return None

    @property
    def mode(self) -> Measurement | None:
        """The fastest mode of torch.compile."""
        return _fastest(a for a in self.arms if a.strategy.split(":")[0] == "full")

    @property
    def graph(self) -> Measurement | None:
        """The fastest of torchproof's."""
        return _fastest(a for a in self.arms if "+graph" in a.strategy)

    @property
    def drift(self) -> float | None:
        """The control's time in the second run over that in the first."""
        times = [
            arm.median_ms
            for run in self.runs
            for arm in run.measurements
            if arm.strategy == "eager+graph" and arm.median_ms
        ]
        return times[1] / times[0] if len(times) == 2 else None


def sound(arm: Measurement) -> bool:
    return bool(arm.median_ms) and arm.verdict not in NOT_RANKED


def _fastest(arms: Iterator[Measurement]) -> Measurement | None:
    return min(filter(sound, arms), key=_step_ms, default=None)


def _step_ms(arm: Measurement) -> float:
    assert arm.median_ms is not None
    return arm.median_ms


def read(folder: Path = RESULTS) -> list[Row]:
    """All rows of the table, in its order."""
    return [
        Row(
            step,
            tuple(
                store.read(path)
                for plate in ("plain", "modes")
                if (path := Work(step, plate).path(folder)).is_file()
            ),
        )
        for step in STEPS
    ]


# -- goals -----------------------------------------------------------------------------


def steps() -> str:
    header = ["what", "eager", "best mode", "torchproof", "ratio", "goal", "", "why"]
    return markdown.table(header, map(_step, read()))


def _step(row: Row) -> tuple[str, ...]:
    eager, mode, graph = row.arm("eager"), row.mode, row.graph
    goal = STEP_GOALS[row.step.train]
    shown = row.step.title, _ms(eager), _named(mode), _named(graph)
    if mode is None or graph is None:
        return *shown, numbers.UNKNOWN, f"{goal:.2f}", "not measured", why_not(row)
    ratio = _step_ms(graph) / _step_ms(mode)
    met = ratio <= goal
    why = "" if met else _why(graph, mode, goal)
    return *shown, f"{ratio:.2f}", f"{goal:.2f}", _word(met), why


def _why(graph: Measurement, mode: Measurement, goal: float) -> str:
    """What keeps a step from being shorter, as far as its kernels tell."""
    kernel_ms = (graph.kernels or {}).get("kernel_ms")
    if kernel_ms is None:
        return "what its kernels take was not measured"
    share = kernel_ms / _step_ms(mode)
    told = f"its kernels take {numbers.milliseconds(kernel_ms)}"
    if share > goal:
        return f"{told} alone, {share:.2f} of the best mode's step"
    return f"{told}, {kernel_ms / _step_ms(graph):.0%} of its own step"


def why_not(row: Row) -> str:
    """Why there is nothing to compare: what the arms of a kind say."""
    if not row.runs:
        return ""
    told = [
        f"{arm.strategy}: {arm.error or '; '.join(arm.notes) or arm.verdict}"
        for arm in row.arms
        if not sound(arm)
    ]
    return "; ".join(told)


def starts() -> str:
    header = ["what", "`reduce-overhead`", "`full+graph`", "`regional+graph`"]
    return markdown.table([*header, "ratio", "goal", ""], map(_start, read()))


def _start(row: Row) -> tuple[str, ...]:
    base, full, ours = (
        row.arm(name) for name in (REDUCE_OVERHEAD, "full+graph", "regional+graph")
    )
    shown = row.step.title, *map(_first_call, (base, full, ours))
    if not (base and ours and base.first_call_s and ours.first_call_s):
        return *shown, numbers.UNKNOWN, f"{FIRST_CALL_GOAL:g}", "not measured"
    ratio = ours.first_call_s / base.first_call_s
    return (
        *shown,
        f"{ratio:.2f}",
        f"{FIRST_CALL_GOAL:g}",
        _word(ratio <= FIRST_CALL_GOAL),
    )


def memory() -> str:
    header = ["what", "best mode", "torchproof", "ratio", "goal", ""]
    return markdown.table([*header, "numerics of both"], map(_memory, read()))


def _memory(row: Row) -> tuple[str, ...]:
    mode, graph = row.mode, row.graph
    sizes = [numbers.size(arm.peak_bytes if arm else None) for arm in (mode, graph)]
    judged = ", ".join(bench_sections.numerics(arm) for arm in (mode, graph) if arm)
    if not (mode and graph and mode.peak_bytes and graph.peak_bytes):
        unknown = numbers.UNKNOWN, f"{MEMORY_GOAL:g}", "not measured"
        return row.step.title, *sizes, *unknown, judged or numbers.UNKNOWN
    ratio = graph.peak_bytes / mode.peak_bytes
    told = f"{ratio:.2f}", f"{MEMORY_GOAL:g}", _word(ratio <= MEMORY_GOAL)
    return row.step.title, *sizes, *told, judged


def claims() -> str:
    header = ["what", "eager", "torchproof", "times", "claimed", ""]
    rows = [row for row in read() if row.step.name in CLAIMS]
    return markdown.table(header, map(_claim, rows))


def _claim(row: Row) -> tuple[str, ...]:
    claim, eager, graph = CLAIMS[row.step.name], row.arm("eager"), row.graph
    shown = row.step.title, _ms(eager), _named(graph)
    if eager is None or graph is None:
        return *shown, numbers.UNKNOWN, f"{claim:g}", "not measured"
    times = _step_ms(eager) / _step_ms(graph)
    return *shown, f"{times:.2f}", f"{claim:g}", _word(times >= claim)


# -- everything ------------------------------------------------------------------------


def arms() -> str:
    """Every arm of every row."""
    header = ["what", "strategy", "step", "interval", "first call", "peak", "kernels"]
    return markdown.table([*header, "numerics", "verdict"], _arms())


def _arms() -> Iterator[tuple[str, ...]]:
    for row in read():
        for arm in row.arms:
            kernel_ms = (arm.kernels or {}).get("kernel_ms")
            yield (
                row.step.title,
                arm.strategy,
                numbers.milliseconds(arm.median_ms),
                numbers.interval(arm.low_ms, arm.high_ms),
                numbers.seconds(arm.first_call_s),
                numbers.size(arm.peak_bytes),
                numbers.milliseconds(kernel_ms),
                bench_sections.numerics(arm),
                arm.verdict or numbers.UNKNOWN,
            )


def conditions() -> str:
    """How it was measured, and by how much the machine drifted between the runs."""
    runs = [run for row in read() for run in row.runs]
    if not runs:
        return "Not measured yet."
    where = runs[0].environment
    told = runs[0].other.get("conditions", {})
    commands = dict.fromkeys(f"`{results_tables.command_of(run)}`" for run in runs)
    names = {arm.strategy for row in read() for arm in row.arms}
    modes = [f"`{name}`" for name in MODES if name in names]
    drifts = [row.drift for row in read() if row.drift]
    spread = ""
    if drifts:
        spread = (
            f" `eager+graph`, measured in both runs of a row, took"
            f" {min(drifts):.2f} to {max(drifts):.2f} times as long in the second"
            f" (median {statistics.median(drifts):.2f})."
        )
    return (
        f"{where.get('gpu', where.get('device'))}, torch {where.get('torch')}, Python"
        f" {where.get('python')}. First calls: {told.get('first_call')}"
        f" ({told.get('slots')} at once, {told.get('cores_each')} cores each). Steps:"
        f" {told.get('timing')}.{spread} Of torch's modes {', '.join(modes)} was"
        f" measured. The command: {', '.join(commands)}."
    )


def replays() -> str:
    """Ten thousand replays: how many answers were compared, and how many were stale."""
    path = RESULTS.parent / "replays.json"
    header = ["step", "calls", "replays", "recordings", "answers compared"]
    header += ["kept and looked at later", "stale", "largest error"]
    if not path.is_file():
        return "Not measured yet."
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = (
        (
            "training" if part["train"] else "inference",
            *(str(part[name]) for name in ("calls", "replays", "recordings")),
            *(str(part[name]) for name in ("compared", "kept", "stale")),
            f"{part['largest_error']:.1e}",
        )
        for part in kept["parts"]
    )
    return markdown.table(header, rows)


# -- cells -----------------------------------------------------------------------------


def _ms(arm: Measurement | None) -> str:
    return numbers.milliseconds(arm.median_ms if arm else None)


def _first_call(arm: Measurement | None) -> str:
    return numbers.seconds(arm.first_call_s if arm else None)


def _named(arm: Measurement | None) -> str:
    if arm is None:
        return numbers.UNKNOWN
    return f"{_ms(arm)} (`{arm.strategy.removeprefix('full:')}`)"


def _word(met: bool) -> str:
    return "met" if met else "missed"


TABLES = {
    "whole step conditions": conditions,
    "whole steps": steps,
    "whole step starts": starts,
    "whole step memory": memory,
    "whole step claims": claims,
    "whole step arms": arms,
    "stale answers": replays,
}
