"""Reads the record of a search (`Run.tuning`) for the reports.

A newer torchproof, or a person, may have written that JSON. A value of an unexpected
type counts as unknown and is never an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof.measure import exclusion_reason
from torchproof.records import Measurement, Run, line
from torchproof.report import numbers

EAGER = "eager"
MEASURED = "measured"
NOT_APPLICABLE = "not applicable"
OBJECTIVES = {
    "step": "the time per step",
    "first": "the time of the first call",
    "memory": "peak memory",
}
_NUMBERS = (
    "seconds",
    "step_ms",
    "first_call_s",
    "peak_bytes",
    "value",
    "vs_eager",
    "vs_eager_low",
    "vs_eager_high",
)
_OUTCOMES = {
    "wrong": "gives wrong outputs",
    "timed out": "timed out",
    "out of memory": "ran out of memory",
    "lost": "ended when its worker was lost",
}


@dataclass(frozen=True)
class Trial:
    """One candidate: the outcome of its trial, and its measurements."""

    name: str
    stage: str = ""
    outcome: str = MEASURED
    why: str = ""
    seconds: float | None = None  # duration of the trial
    step_ms: float | None = None
    first_call_s: float | None = None
    cold: bool = True  # False: caches were warm, or other trials started at once
    peak_bytes: float | None = None
    numerics: Mapping[str, Any] = field(default_factory=dict, hash=False)
    vs_eager: float | None = None
    vs_eager_low: float | None = None
    vs_eager_high: float | None = None
    value: float | None = None  # what the objective minimises: seconds or bytes
    where: str = ""
    resumed: bool = False
    final: bool = False
    source: str = ""

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Trial:
        numbers_of = {name: _number(plain.get(name)) for name in _NUMBERS}
        return cls(
            name=_text(plain.get("name")) or numbers.UNKNOWN,
            stage=_text(plain.get("stage")),
            outcome=_text(plain.get("outcome")) or MEASURED,
            why=line(_text(plain.get("why"))),
            cold=plain.get("cold") is not False,
            numerics=_mapping(plain.get("numerics")),
            where=_text(plain.get("where")),
            resumed=plain.get("resumed") is True,
            final=plain.get("final") is True,
            source=_text(plain.get("source")),
            **numbers_of,
        )

    @property
    def is_eager(self) -> bool:
        return self.name == EAGER

    @property
    def ranked(self) -> bool:
        return self.outcome == MEASURED

    @property
    def gain(self) -> str:
        """`1.62x (1.50-1.70)`; eager is the reference."""
        if self.is_eager:
            return "reference"
        return numbers.times(self.vs_eager, self.vs_eager_low, self.vs_eager_high)

    @property
    def verdict(self) -> str:
        return _text(self.numerics.get("verdict")) or numbers.UNKNOWN

    @property
    def end(self) -> str:
        """The outcome of a trial without a rank: `timed out: no reply in 120 s`."""
        outcome = _OUTCOMES.get(self.outcome, self.outcome)
        return f"{outcome}: {self.why.rstrip('.')}" if self.why else outcome

    def with_final(self, row: Measurement) -> Trial:
        """Adds the measurements of the finals; an excluded row has no rank."""
        why = exclusion_reason(row)
        if why is not None:
            is_wrong = (row.numerics or {}).get("verdict") == "wrong"
            outcome = "wrong" if is_wrong else why
            return replace(self, final=True, outcome=outcome, why="")
        cold = (row.start or {}).get("label") == "cold" and row.first_call_s is not None
        return replace(
            self,
            final=True,
            step_ms=row.median_ms,
            cold=cold or self.cold,
            first_call_s=row.first_call_s if cold else self.first_call_s,
            peak_bytes=self.peak_bytes if row.peak_bytes is None else row.peak_bytes,
            numerics=row.numerics or self.numerics,
            vs_eager=row.vs_eager,
            vs_eager_low=row.vs_eager_low,
            vs_eager_high=row.vs_eager_high,
            source=row.source or self.source,
        )


@dataclass(frozen=True)
class Search:
    """A complete search, with its trials ordered by the objective."""

    objective: str = "step"
    effort: str = ""
    budget_s: float | None = None
    spent_s: float | None = None
    min_gain: float | None = None
    stopped: str = ""
    executor: str = ""
    probe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    trials: tuple[Trial, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()  # (name, why it was skipped)
    chosen: str = ""
    why: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    recipe_file: str = ""

    @classmethod
    def of(cls, run: Run) -> Search:
        plain = _mapping(run.tuning)
        objective = _text(plain.get("objective")) or "step"
        timed = {_label(row): row for row in run.measurements}
        trials = [Trial.from_json(each) for each in _mappings(plain.get("trials"))]
        trials = [t.with_final(timed[t.name]) if t.name in timed else t for t in trials]
        return cls(
            objective=objective,
            effort=_text(plain.get("effort")),
            budget_s=_number(plain.get("budget_s")),
            spent_s=_number(plain.get("spent_s")),
            min_gain=_number(plain.get("min_gain")),
            stopped=_text(plain.get("stopped")),
            executor=_text(plain.get("executor")),
            probe=_mapping(plain.get("probe")),
            trials=tuple(in_order(trials)),
            skipped=tuple(_skipped(plain)),
            chosen=_text(plain.get("chosen")),
            why=_text(plain.get("why")),
            recipe=_mapping(plain.get("recipe")),
            recipe_file=_text(plain.get("recipe_file")),
        )

    @property
    def ranked(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.ranked]

    @property
    def failed(self) -> list[Trial]:
        passed_over = (MEASURED, NOT_APPLICABLE)
        return [trial for trial in self.trials if trial.outcome not in passed_over]

    @property
    def winner(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.name == self.chosen), None)

    @property
    def lines(self) -> str:
        """The Python code of the chosen strategy."""
        code = self.recipe.get("lines")
        if isinstance(code, list | tuple):
            code = "\n".join(map(str, code))
        return _text(code) or (self.winner.source if self.winner else "")

    def left_out(self) -> dict[str, list[str]]:
        """Candidates that were skipped or not applicable, by reason."""
        reasons: dict[str, list[str]] = {}
        outcome = NOT_APPLICABLE
        inapplicable = [(t.name, t.why) for t in self.trials if t.outcome == outcome]
        for name, why in (*inapplicable, *self.skipped):
            reasons.setdefault(why.rstrip(".") or "no reason given", []).append(name)
        return reasons


def in_order(trials: Sequence[Trial]) -> list[Trial]:
    """Finalists first, then by the objective; trials without a value come last.

    The value uses the gain over eager, which each trial measures at the same time. Step
    times of trials that ran at other times may be in another order.
    """

    def place(trial: Trial) -> tuple[bool, float, float]:
        return not trial.final, _or_last(trial.value), _or_last(trial.step_ms)

    return sorted(trials, key=place)


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


def finals(run: Run) -> dict[str, Measurement]:
    """The valid rows of the finals, by candidate."""
    return {_label(row): row for row in run.measurements if not exclusion_reason(row)}


def by_candidate(run: Run) -> Run:
    """The run with its rows named after their candidates."""
    rows = [replace(row, strategy=_label(row), variant={}) for row in run.measurements]
    return replace(run, measurements=tuple(rows))


def _label(row: Measurement) -> str:
    """The name of the candidate of a row of the finals."""
    return ", ".join([row.strategy, *map(str, row.variant.values())])


def _skipped(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in _mappings(plain.get("skipped")):
        yield _text(each.get("name")) or numbers.UNKNOWN, _text(each.get("why"))


# -- in words --------------------------------------------------------------------------


def objective(text: str) -> str:
    """The objective in words: `steps:500` is `the time of 500 steps, ...`."""
    name, _, steps = text.partition(":")
    if name == "steps" and steps:
        return f"the time of {steps} steps, including compilation"
    return OBJECTIVES.get(text, text)


def first_call(trial: Trial) -> str:
    """The first call, with a `*` if it was not a cold start."""
    text = numbers.seconds(trial.first_call_s)
    return text if trial.cold or trial.first_call_s is None else f"{text} *"


WARM = "* not a cold first call: caches were warm, or other trials started at once"


def is_warm(trial: Trial) -> bool:
    return not trial.cold and trial.first_call_s is not None


def spent(search: Search) -> str:
    """`6 min 52 s of a budget of 10 min`."""
    text = numbers.duration(search.spent_s)
    if search.budget_s is None:
        return text
    return f"{text} of a budget of {numbers.duration(search.budget_s)}"


def counted(search: Search) -> str:
    """The number of trials, where they ran, and how many an earlier search made."""
    text = numbers.amount(len(search.trials), "trial")
    text += f" on {search.executor}" if search.executor else ""
    before = sum(trial.resumed for trial in search.trials)
    return f"{text}, {before} of them from an earlier search" if before else text


def about(search: Search) -> Iterator[str]:
    """The objective, time, trials, stop reason and probe of a search, one line each."""
    yield f"Objective: {objective(search.objective)}"
    yield f"Time: {spent(search)}"
    yield f"Trials: {counted(search)}"
    if search.stopped:
        yield f"Stopped because {stopped(search)}"
    if search.min_gain is not None:
        yield f"Minimum gain over eager: {search.min_gain:.2f}x"
    yield from probed(search.probe)


def stopped(search: Search) -> str:
    """The clause after `stopped because`."""
    return {"interrupted": "it was interrupted"}.get(search.stopped, search.stopped)


def probed(probe: Mapping[str, Any]) -> Iterator[str]:
    """The results of the probe of the target, one sentence each."""
    bound, why = _text(probe.get("bound")), _text(probe.get("bound_why")).rstrip(".")
    if bound or why:
        limit = f"{bound}-bound" if bound else "the bottleneck is not known"
        yield _sentence(f"{limit}: {why}" if why else limit)
    blocks = _mapping(probe.get("blocks"))
    if blocks:
        text = ", ".join(f"{count} of {name}" for name, count in blocks.items())
        yield f"Repeated blocks: {text}."
    if syncs := _number(probe.get("host_syncs")):
        often = f"{numbers.count(syncs)} time{'' if syncs == 1 else 's'}"
        yield f"Each call synchronizes with the GPU {often}."
    varying = probe.get("varying")
    if isinstance(varying, list) and varying:
        yield f"Varies between calls: {', '.join(map(_size, varying))}."


def _size(varying: Any) -> str:
    """`sizes 0 and 1 of tokens`: the path of an argument and its dimensions."""
    if not isinstance(varying, list | tuple) or len(varying) != 2:
        return str(varying)
    path, which = varying
    dimensions = which if isinstance(which, list | tuple) else [which]
    noun = "size" if len(dimensions) == 1 else "sizes"
    return f"{noun} {' and '.join(map(str, dimensions))} of {path}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def decision(search: Search) -> str:
    """The decision in one sentence."""
    parts = [search.chosen, search.why.rstrip(".")]
    return ": ".join(filter(None, parts)) + "." if any(parts) else "no strategy chosen."


def to_go_on(run: Run, search: Search) -> str:
    """The command that resumes an interrupted search; else empty."""
    if search.chosen or not run.command or search.stopped != "interrupted":
        return ""
    more = "" if "--resume" in run.command.split() else " --resume"
    return f"{run.command}{more}"


def applied(search: Search) -> str:
    """The line of Python that uses the recipe.

    A CUDA graph of a training step includes the backward, so it wraps the whole step.
    """
    path = json.dumps(search.recipe_file, ensure_ascii=False)
    strategy = _mapping(search.recipe.get("strategy"))
    if strategy.get("graph") is True and search.recipe.get("train") is True:
        return f"step = torchproof.graph(model, recipe={path})"
    return f"model = torchproof.compile(model, recipe={path})"


# -- values of unknown type ------------------------------------------------------------


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e30 and math.isfinite(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    for each in value if isinstance(value, list | tuple) else ():
        if isinstance(each, Mapping):
            yield each
