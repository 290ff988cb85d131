"""A search (`Run.tuning`) in words: its objective, trials, decision and next step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchproof.measure import exclusion_reason
from torchproof.records import Measurement, Run, Trial, Tuning, line
from torchproof.report import numbers
from torchproof.report.document import Table, columns

OBJECTIVES = {
    "step": "the time per step",
    "first": "the time of the first call",
    "memory": "peak memory",
}
_OUTCOMES = {
    "wrong": "gives wrong outputs",
    "timed out": "timed out",
    "out of memory": "ran out of memory",
    "lost": "ended when its worker was lost",
}
WARM = "* not a cold first call: caches were warm, or other trials started at once"


def search_of(run: Run) -> Tuning:
    return run.tuning or Tuning()


# -- trials ----------------------------------------------------------------------------


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Finalists first, then by the objective; trials without a value come last.

    The value uses the gain over eager, which each trial measures at the same time. Step
    times of trials that ran at other times may be in another order.
    """

    def place(trial: Trial) -> tuple[bool, float, float]:
        return not trial.final, _or_last(trial.value), _or_last(trial.step_ms)

    return sorted(trials, key=place)


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


def ranked(search: Tuning) -> list[Trial]:
    return [trial for trial in in_order(search.trials) if trial.is_ranked]


def failed(search: Tuning) -> list[Trial]:
    passed_over = ("measured", "not applicable")
    return [t for t in in_order(search.trials) if t.outcome not in passed_over]


def winner(search: Tuning) -> Trial | None:
    return next((t for t in search.trials if t.name == search.chosen), None)


def left_out(search: Tuning) -> dict[str, list[str]]:
    """Candidates that were skipped or not applicable, by reason."""
    inapplicable = [t for t in search.trials if t.outcome == "not applicable"]
    pairs = [(trial.name, trial.why or "") for trial in inapplicable]
    pairs += [(skip.name, skip.why) for skip in search.skipped]
    reasons: dict[str, list[str]] = {}
    for name, why in pairs:
        reasons.setdefault(why.rstrip(".") or "no reason given", []).append(name)
    return reasons


def finals(run: Run) -> dict[str, Measurement]:
    """The valid rows of the finals, by candidate."""
    return {label(row): row for row in run.measurements if not exclusion_reason(row)}


def label(row: Measurement) -> str:
    """The name of the candidate of a row of the finals."""
    return ", ".join([row.strategy, *map(str, row.variant.values())])


def gain(trial: Trial) -> str:
    """`1.62x (1.50-1.70)`; eager is the reference."""
    if trial.is_eager:
        return "reference"
    return numbers.times(trial.vs_eager, trial.vs_eager_low, trial.vs_eager_high)


def first_call(trial: Trial) -> str:
    """The first call, with a `*` if it was not a cold start."""
    text = numbers.seconds(trial.first_call_s)
    return f"{text} *" if trial.is_warm else text


def why_not_ranked(trial: Trial) -> str:
    """The outcome of a trial without a rank: `timed out: no reply in 120 s`."""
    outcome = _OUTCOMES.get(trial.outcome, trial.outcome)
    return f"{outcome}: {line(trial.why).rstrip('.')}" if trial.why else outcome


# -- tables of trials ------------------------------------------------------------------

_OPTIONAL = ("MFU", "where")


def table(
    title: str, trials: Sequence[Trial], search: Tuning, *, brief: bool = False
) -> Table:
    """The trials; a terminal has no room for all. `steps:N` adds a column."""
    name, _, steps = search.objective.partition(":")
    total = {f"{steps} steps": lambda trial: numbers.seconds(trial.value)}
    cells: dict[str, Callable[[Trial], str]] = {
        "strategy": lambda trial: trial.name,
        "step": lambda trial: numbers.milliseconds(trial.step_ms),
        **(total if name == "steps" else {}),
        "vs eager": gain,
        "first call": first_call,
        "memory": lambda trial: numbers.size(trial.peak_bytes),
        "numerics": lambda trial: trial.verdict or numbers.UNKNOWN,
        "MFU": lambda trial: numbers.share(trial.mfu, at_least=trial.mfu_at_least),
        "stage": lambda trial: trial.stage,
        "trial took": lambda trial: numbers.seconds(trial.seconds),
        "where": lambda trial: trial.where or numbers.UNKNOWN,
    }
    if brief:
        cells = {n: c for n, c in cells.items() if n not in ("stage", "trial took")}
        del cells["where"]
    lines = [WARM] if any(trial.is_warm for trial in trials) else []
    optional = [name for name in _OPTIONAL if name in cells]
    return columns(title, trials, cells, lines, optional=optional)


# -- the search ------------------------------------------------------------------------


def objective(text: str) -> str:
    """The objective in words: `steps:500` is `the time of 500 steps, ...`."""
    name, _, steps = text.partition(":")
    if name == "steps" and steps:
        return f"the time of {steps} steps, including compilation"
    return OBJECTIVES.get(text, text)


def spent(search: Tuning) -> str:
    """`6 min 52 s of a budget of 10 min`."""
    text = numbers.duration(search.spent_s)
    if search.budget_s is None:
        return text
    return f"{text} of a budget of {numbers.duration(search.budget_s)}"


def counted(search: Tuning) -> str:
    """The number of trials, where they ran, and how many an earlier search made."""
    text = numbers.amount(len(search.trials), "trial")
    text += f" on {search.executor}" if search.executor else ""
    before = sum(trial.resumed for trial in search.trials)
    return f"{text}, {before} of them from an earlier search" if before else text


def about(search: Tuning) -> Iterator[str]:
    """The objective, time, trials, stop reason and probe of a search, one line each."""
    effort = f", effort {search.effort}" if search.effort else ""
    yield f"Objective: {objective(search.objective)}{effort}"
    yield f"Time: {spent(search)}"
    yield f"Trials: {counted(search)}"
    if search.stopped:
        yield f"Stopped because {stopped(search)}"
    if search.min_gain is not None:
        yield f"Minimum gain over eager: {search.min_gain:.2f}x"
    yield from probed(search.probe)


def stopped(search: Tuning) -> str:
    """The clause after `stopped because`."""
    return {"interrupted": "it was interrupted"}.get(search.stopped, search.stopped)


def probed(probe: Mapping[str, Any]) -> Iterator[str]:
    """The results of the probe of the target, one sentence each."""
    bound, why = probe.get("bound"), (probe.get("bound_why") or "").rstrip(".")
    if bound or why:
        limit = f"{bound}-bound" if bound else "the bottleneck is not known"
        yield _sentence(f"{limit}: {why}" if why else limit)
    if blocks := probe.get("blocks"):
        text = ", ".join(f"{count} of {name}" for name, count in blocks.items())
        yield f"Repeated blocks: {text}."
    if syncs := probe.get("host_syncs"):
        often = f"{numbers.count(syncs)} time{'' if syncs == 1 else 's'}"
        yield f"Each call synchronizes with the GPU {often}."
    if varying := probe.get("varying"):
        yield f"Varies between calls: {', '.join(map(_size, varying))}."


def _size(varying: Sequence[Any]) -> str:
    """`sizes 0 and 1 of tokens`: the path of an argument and its dimensions."""
    if len(varying) != 2 or not isinstance(varying[1], list | tuple):
        return str(varying)
    path, dimensions = varying
    noun = "size" if len(dimensions) == 1 else "sizes"
    return f"{noun} {' and '.join(map(str, dimensions))} of {path}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


# -- the result ------------------------------------------------------------------------


def decision(search: Tuning) -> str:
    """The decision in one sentence."""
    parts = [search.chosen or "", (search.why or "").rstrip(".")]
    return ": ".join(filter(None, parts)) + "." if any(parts) else "no strategy chosen."


def code_lines(search: Tuning) -> str:
    """The Python code of the chosen strategy."""
    chosen = winner(search)
    return (search.recipe or {}).get("lines") or (chosen.source if chosen else "")


def to_go_on(run: Run) -> str:
    """The command that resumes an interrupted search; else empty."""
    search = search_of(run)
    if search.chosen or not run.command or search.stopped != "interrupted":
        return ""
    more = "" if "--resume" in run.command.split() else " --resume"
    return f"{run.command}{more}"


def applied(search: Tuning) -> str:
    """The line of Python that uses the recipe.

    A CUDA graph of a training step includes the backward, so it wraps the whole step.
    """
    path = json.dumps(search.recipe_file, ensure_ascii=False)
    recipe = search.recipe or {}
    strategy = recipe.get("strategy")
    graphed = isinstance(strategy, Mapping) and strategy.get("graph") is True
    if graphed and recipe.get("train") is True:
        return f"step = torchproof.graph(model, recipe={path})"
    return f"model = torchproof.compile(model, recipe={path})"
