"""Turns a finished search into a `Run` and a `Recipe`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from torchproof.measure import EAGER
from torchproof.records import COUNTS, Run, Trial, Tuning, shapes
from torchproof.strategies import Plan, Recipe, matching
from torchproof.tuning.search import Search


def run_of(
    search: Search,
    chosen: Trial | None,
    *,
    executor: str,
    key: str,
    **identity: Any,
) -> Run:
    """The run of this identity; its measurements are those of the finals."""
    return Run(
        **identity,
        strategy=chosen.name if chosen else "",
        environment=search.environment,
        counts=dict.fromkeys(COUNTS),
        measurements=search.rows,
        tuning=_tuning_of(search, chosen, executor, key),
        verb="tune",
        ending="finished" if chosen else "interrupted",
    )


def recipe_of(search: Search, chosen: Trial, run: Run, *, train: bool) -> Recipe:
    """The recipe: the chosen strategy and everything needed to apply it elsewhere.

    `train`: whether a step has a backward pass, which the target may run itself.
    """
    candidate, eager = search.candidates.get(chosen.name), search.eager
    strategy = candidate.strategy if candidate else EAGER
    gain = {"value": chosen.vs_eager, "low": chosen.vs_eager_low}
    measured = {
        "eager_ms": eager.step_ms,
        "step_ms": chosen.step_ms,
        "first_call_s": chosen.first_call_s if chosen.cold else None,
        "eager_peak_bytes": eager.peak_bytes,
        "peak_bytes": chosen.peak_bytes,
    }
    compared = chosen.numerics or shapes.Numerics()
    numerics = {
        "verdict": compared.get("verdict"),
        "max_rel_error": compared.get("max_rel_error"),
        "replays": chosen.replays,
    }
    return Recipe(
        replace(strategy, dynamo={}),  # a recipe has a table for them
        Plan.from_json(chosen.plan) if chosen.plan else Plan(),
        train=bool(run.environment.get("train") or train),
        target=run.target,
        run=run.id,
        objective=str(search.options.objective),
        gain=_rounded(gain | {"high": chosen.vs_eager_high}) if candidate else {},
        measured=_rounded(measured),
        numerics=_rounded(numerics) if candidate else {},
        environment=matching.environment_of(run.environment),
        model=search.probe.get("fingerprint") or {},
        lines=chosen.source,
        dynamo=strategy.dynamo,
    )


def _rounded(values: shapes.Values) -> shapes.Values:
    """The values that are not None, rounded to six digits."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


def _tuning_of(search: Search, chosen: Trial | None, executor: str, key: str) -> Tuning:
    """The `tuning` field of the run."""
    options = search.options
    return Tuning(
        objective=str(options.objective),
        effort=options.effort,
        budget_s=options.budget_s,
        spent_s=options.budget_s - (search.deadline - time.monotonic()),
        min_gain=options.least,
        stopped=search.stopped if chosen else "interrupted",
        executor=executor,
        key=key,
        resumed=sum(trial.resumed for trial in search.trials.values()),
        probe={**search.probe, "fingerprint": None},
        trials=search.valued(),
        skipped=tuple(search.skipped),
        chosen=chosen.name if chosen else None,
        why=_why(search, chosen) if chosen else None,
    )


_ANSWERS = {
    "rounding": "the same outputs up to rounding",
    "random": "the same outputs up to a different random stream",
}
_SUBJECTS = {
    "step": "a step is",
    "first": "its first call is the shortest of all that are faster; a step is",
    "steps": "{} steps, compilation included, are",
}


def _why(search: Search, chosen: Trial) -> str:
    """One sentence that justifies the choice."""
    if chosen.name != search.eager.name:
        return _why_better(search, chosen)
    objective, least = search.options.objective, search.options.least
    others = [trial for trial in search.ranked if trial.name != chosen.name]
    if not others:
        return "no other strategy ran and returned eager's outputs"
    best = others[0]
    gain = objective.gain(best, search.eager)
    if gain is None:
        return f"{best.name} was not compared with eager"
    if gain < least:
        return (
            f"no strategy beats eager by {least - 1:.0%}: the best, {best.name}, is"
            f" {gain:.2f} times as good"
        )
    low, high = best.vs_eager_low, best.vs_eager_high
    interval = f" ({low:.2f}x to {high:.2f}x)" if low and high else ""
    return (
        f"no strategy is significantly better: {best.name}{interval} is only probably"
        " so"
    )


def _why_better(search: Search, chosen: Trial) -> str:
    objective = search.options.objective
    gain = objective.gain(chosen, search.eager) or 1.0
    if objective.kind == "memory":
        sentence = f"its peak memory is {1 / gain:.0%} of eager's"
    else:
        subject = _SUBJECTS[objective.kind].format(objective.steps)
        sentence = f"{subject} {gain:.2f}x faster than in eager"
    verdict = str((chosen.numerics or {}).get("verdict"))
    sentence += f", with {_ANSWERS.get(verdict, 'the same outputs')}"
    if chosen.replays is None:
        return sentence
    return (
        f"{sentence}; {chosen.replays:,} replays were bitwise equal to the same"
        " strategy without dependent launches"
    )
