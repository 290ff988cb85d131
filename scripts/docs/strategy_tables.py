"""The tables of docs/decide.md: what each way to run a step was worth where measured.

In come runs under benchmarks/results: those of whole steps on a GPU, those of `bench`
there, and runs named `modes-*.json` from other machines. What is not there is a dash; a
file that is added is taken up.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import results_tables
import whole_step_tables

from torchproof.records import store
from torchproof.records.run import Measurement, Run
from torchproof.report import markdown, numbers

# In the order in which one would try them, with what each means.
WAYS = {
    "full": "`torch.compile(model)`",
    "full:reduce-overhead": '`mode="reduce-overhead"`',
    "full:max-autotune": '`mode="max-autotune"`',
    "full:max-autotune-no-cudagraphs": '`mode="max-autotune-no-cudagraphs"`',
    "regional": "the repeated blocks alone",
    "eager+graph": "nothing compiled, the step in one CUDA graph",
    "full+graph": "compiled whole, the step in one CUDA graph",
    "regional+graph": "blocks and the rest apart, the step in one CUDA graph",
}


@dataclass(frozen=True)
class Step:
    """One step with all that was measured of it, eager among it."""

    title: str
    runs: tuple[Run, ...]

    def arms(self, way: str) -> list[Measurement]:
        return [
            arm
            for run in self.runs
            for arm in run.measurements
            if arm.strategy == way and "guards" not in arm.variant
        ]

    def arm(self, way: str) -> Measurement | None:
        """One that can be believed before one that failed."""
        arms = sorted(self.arms(way), key=whole_step_tables.sound, reverse=True)
        return arms[0] if arms else None

    def sound(self, way: str) -> Measurement | None:
        arm = self.arm(way)
        return arm if arm is not None and whole_step_tables.sound(arm) else None

    @property
    def is_compared(self) -> bool:
        """Whether torch's modes and graphs of whole steps were both measured."""
        return bool(self.sound("full:reduce-overhead") and self.sound("full+graph"))


def on_gpu() -> list[Step]:
    """Steps of both kinds of runs; a step that both have is one row."""
    runs: dict[str, list[Run]] = {}
    for row in whole_step_tables.read():
        if row.runs:
            runs.setdefault(row.step.title, []).extend(row.runs)
    for name, title in results_tables.ON_GPU.items():
        runs.setdefault(title, []).append(results_tables.gpu_run(name))
    return [Step(title, tuple(found)) for title, found in runs.items()]


def elsewhere() -> list[Step]:
    """What was measured on a CPU."""
    paths = sorted(results_tables.KEPT.glob("modes-*.json"))
    return [Step(_title(run), (run,)) for run in map(store.read, paths)]


def _title(run: Run) -> str:
    name = run.target.rpartition("/")[2].removeprefix("workload:")
    size = run.environment.get("size")
    train = "training" if run.environment.get("train") else "inference"
    return f"{' '.join(filter(None, [name, str(size or '')]))}, {train}"


# -- the modes -------------------------------------------------------------------------


def modes() -> str:
    """Each way: over how many steps, what it gained, what its first call took."""
    steps = on_gpu()
    compared = [step for step in steps if step.is_compared]
    header = ["strategy", "what it is", "steps", "times as fast as eager"]
    header += ["first call", f"shortest step, of {len(compared)}"]
    return markdown.table(header, _modes(steps, [_shortest(one) for one in compared]))


def _modes(steps: list[Step], best: list[str]) -> Iterator[tuple[str, ...]]:
    for way, meaning in WAYS.items():
        arms = [arm for step in steps if (arm := step.arm(way)) is not None]
        sound = [arm for arm in arms if whole_step_tables.sound(arm)]
        gains = [arm.vs_eager for arm in sound if arm.vs_eager]
        starts = [arm.first_call_s for arm in sound if arm.first_call_s is not None]
        count = str(len(sound))
        if len(arms) > len(sound):
            count += f", and {len(arms) - len(sound)} without a result"
        yield (
            f"`{way}`",
            meaning,
            count,
            _range(gains, lambda value: f"{value:.2f}x"),
            _range(starts, numbers.seconds),
            str(best.count(way)) if sound else numbers.UNKNOWN,
        )


def _range(values: Iterable[float], shown: Callable[[float], str]) -> str:
    """The median, and from the least to the most."""
    found = sorted(values)
    if len(found) < 2:
        return shown(found[0]) if found else numbers.UNKNOWN
    middle = shown(statistics.median(found))
    return f"{middle} ({shown(found[0])} to {shown(found[-1])})"


def _shortest(step: Step) -> str:
    """By its time, not by its gain: eager depends on the host of the run."""
    times = {way: arm.median_ms for way in WAYS if (arm := step.sound(way)) is not None}
    return min(times, key=lambda way: times[way] or 0)


# -- step by step ----------------------------------------------------------------------


def each_on_gpu() -> str:
    return _each(on_gpu())


def each_elsewhere() -> str:
    steps = elsewhere()
    return _each(steps) if steps else "Not measured yet."


def _each(steps: list[Step]) -> str:
    """A row for each step, a column for each way that was measured somewhere."""
    ways = [way for way in WAYS if any(step.arms(way) for step in steps)]
    rows = (
        (step.title, _eager(step), *(_cell(step.arm(way)) for way in ways))
        for step in steps
    )
    return markdown.table(["what", "eager", *(f"`{way}`" for way in ways)], rows)


def _eager(step: Step) -> str:
    """The least and the most of its runs: the host was not always as quick."""
    times = [arm.median_ms for arm in step.arms("eager") if arm.median_ms]
    shown = list(dict.fromkeys(map(numbers.milliseconds, sorted(times))))
    return " to ".join([shown[0], shown[-1]] if len(shown) > 1 else shown)


def _cell(arm: Measurement | None) -> str:
    if arm is None:
        return numbers.UNKNOWN
    if not whole_step_tables.sound(arm):
        return arm.verdict or "failed"
    gain = arm.verdict if arm.verdict == "not significant" else f"{arm.vs_eager:.2f}x"
    step, start = numbers.milliseconds(arm.median_ms), numbers.seconds(arm.first_call_s)
    return f"{step}, {gain}, {start}"


def without_result() -> str:
    """Why some cells have no numbers."""
    rows = [
        (step.title, f"`{way}`", arm.error or next(iter(arm.notes), "-"))
        for step in [*on_gpu(), *elsewhere()]
        for way in WAYS
        if (arm := step.arm(way)) is not None and not whole_step_tables.sound(arm)
    ]
    if not rows:
        return "Everything that was begun has a result."
    return markdown.table(["what", "strategy", "why there is no result"], iter(rows))


def conditions() -> str:
    """The machines behind both tables."""
    told: list[str] = []
    for steps in (on_gpu(), elsewhere()):
        runs = [run for step in steps for run in step.runs]
        told += dict.fromkeys(
            f"{run.environment.get('gpu') or _processor(run)},"
            f" torch {run.environment.get('torch')}"
            for run in runs
        )
    return "Measured on: " + "; ".join(told) + "."


def _processor(run: Run) -> str:
    where = run.environment
    return f"{where.get('machine', 'CPU')}, {where.get('cores', '-')} cores"


TABLES = {
    "modes": modes,
    "modes on a gpu": each_on_gpu,
    "modes on a cpu": each_elsewhere,
    "modes without a result": without_result,
    "modes conditions": conditions,
}
