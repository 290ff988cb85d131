"""Measures a script as written against itself in eager, within one run of the script.

Takes a plan, starts `script_bench_worker`, and turns its stream into measurements.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from torchproof.measure import rows
from torchproof.measure.replies import Facts, SampledRound
from torchproof.measure.specs import AS_WRITTEN, MeasureResult, Plan, Progress
from torchproof.measure.strategy_state import StrategyState
from torchproof.measure.worker_process import NO_REMOTE_CACHES
from torchproof.observe import timeline
from torchproof.process import Conditions, Entry, Followed, follow
from torchproof.records import Measurement, Record, one_line, shapes, stats
from torchproof.targets import Job, Target, factory_targets

NOT_COMPARED = (
    "outputs of a script are not compared with eager's; a factory's are: torchproof"
    " bench FILE:FACTORY"
)
# If the script ended before it was measured, --seconds cannot help.
_LONGER = "let the script run longer"

STRATEGIES = tuple(spec.strategy.name for spec in AS_WRITTEN)


@dataclass(frozen=True)
class ScriptJob(Record):
    """A run of a script, and how long to time its steps."""

    run: Job
    seconds: float


def measure(plan: Plan, progress: Progress) -> MeasureResult:
    """Runs the script once; returns partial results on interruption or failure."""
    with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
        states = [StrategyState(spec, Path(scratch)) for spec in AS_WRITTEN]
        conditions = Conditions(
            environment=NO_REMOTE_CACHES | states[1].environment,
            timeout_s=plan.timeout_s,
            quiet=plan.quiet,
        )
        run = Job(plan.target, train=plan.train, device=plan.device, size=plan.size)
        stream = follow(
            "torchproof.measure.script_bench_worker",
            json.dumps(ScriptJob(run, plan.seconds).to_json()),
            functools.partial(_report, progress),
            conditions,
        )
        timeline.process_ended(stream.pid)
    environment = stream.last("environment") or stream.last("begun").get("environment")
    error = stream.failure(script=True)
    return MeasureResult(
        _rows(states, plan, stream),
        environment=cast(
            shapes.Environment, environment or {"torch": None, "device": None}
        ),
        ending="crashed" if stream.crashed else stream.ending,
        exit_code=stream.code,
        error=one_line(error) if error else None,
    )


def _report(progress: Progress, entry: Entry, seconds: float) -> None:
    if entry["kind"] == "steps":
        progress(f"{entry['doing']}, step {entry['seen']}, {seconds:.0f} s")
    if entry["kind"] == "measured":
        progress("measured; the script runs to its end (Ctrl-C stops it)")


# -- rows ------------------------------------------------------------------------------


def _rows(
    states: list[StrategyState], plan: Plan, stream: Followed
) -> tuple[Measurement, ...]:
    eager, compiled = _sampled(stream)
    costs = {k: v for k, v in stream.last("compiled").items() if v is not None}
    compiled = replace(
        compiled.updated(Facts.from_json({"counts": {"graphs": 0}} | costs)),
        compilations=sum(e["count"] for e in stream.of("compiled_while_timed")),
        steady=stream.last("warm").get("steady", True),
        numerics={"verdict": None, "why": NOT_COMPARED},
        notes=tuple(_notes(stream, plan.target, timed=bool(eager.rounds))),
    )
    if eager.rounds:
        note = "measured in the same run, with the compiler stance force_eager"
        eager = replace(eager, notes=(note,))
    for state, facts in zip(states, (eager, compiled), strict=True):
        state.facts.append(facts)
    # There is no code to paste: the script stays as it is.
    plain, row = (replace(r, source="") for r in rows.rows(states, plan, {}))
    return replace(plain, start=None), row


def _graphs(stream: Followed) -> int:
    counts: Mapping[str, int] | None = stream.last("compiled").get("counts")
    return counts["graphs"] if counts else 0


def _sampled(stream: Followed) -> list[Facts]:
    """Returns the rounds of both strategies; none if too few for a verdict."""
    empty = Facts(
        collector="as the script sets it",
        longer=stats.LONGER if stream.of("measured") else _LONGER,
    )
    rounds: dict[str, list[SampledRound]] = {name: [] for name in STRATEGIES}
    for entry in stream.entries:
        if entry["kind"] in {"start_over", "refused"}:
            rounds = {name: [] for name in STRATEGIES}
        if entry["kind"] == "round":
            sampled = SampledRound.from_json(entry["sampled"])
            rounds[entry["strategy"]].append(sampled)
    if not _graphs(stream) or min(map(len, rounds.values())) < stats.FEWEST_ROUNDS:
        return [empty, empty]
    return [replace(empty, rounds=(tuple(each),)) for each in rounds.values()]


def _notes(stream: Followed, target: Target, *, timed: bool) -> Iterator[str]:
    if not _graphs(stream):  # `rows` notes that nothing was compiled
        if factories := factory_targets(target):
            yield f"to measure a factory: torchproof bench {' or '.join(factories)}"
        return
    steps = stream.last("steps")
    if stream.of("refused"):
        yield "the script sets the compiler's stance itself: no eager steps were timed"
    elif not timed and steps:
        yield f"not enough steps: {steps['seen']} run, about {steps['needed']} needed"
    calls = stream.last("warm").get("calls") or 1
    if calls > 1:
        yield f"a step is {calls} calls, one optimizer step"
    if timed:
        yield "memory is not given: one process ran both strategies"
