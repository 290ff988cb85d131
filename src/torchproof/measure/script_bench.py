"""A script measured as it is written, against itself in eager, within one run of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof.measure import rows
from torchproof.measure.specs import AS_WRITTEN, MeasureResult, Plan, Progress
from torchproof.measure.strategy_state import StrategyState
from torchproof.measure.worker_process import NO_REMOTE_CACHES
from torchproof.process import Conditions, Entry, Followed, follow
from torchproof.records import Measurement, one_line, stats

FEWEST_ROUNDS = 4  # of each arm, for a verdict


def measure(plan: Plan, progress: Progress) -> MeasureResult:
    """Runs the script once; what an interruption or a failure left is kept."""
    with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
        states = [StrategyState(spec, Path(scratch)) for spec in AS_WRITTEN]
        under = Conditions(
            environment=NO_REMOTE_CACHES | states[1].environment,
            timeout_s=plan.timeout_s,
            quiet=plan.quiet,
        )
        job = plan.job(AS_WRITTEN[1], {}) | {"seconds": plan.seconds}
        told, telling = json.dumps(job), _Telling(progress)
        seen = follow("torchproof.measure.script_bench_worker", told, telling, under)
    environment = seen.last("environment") or seen.last("begun").get("environment")
    error = seen.failure(script=True)
    return MeasureResult(
        _rows(states, plan, seen),
        environment=environment or {"torch": None, "device": None},
        ending="crashed" if seen.crashed else seen.ending,
        exit_code=seen.code,
        error=one_line(error) if error else None,
    )


class _Telling:
    """Says where the script is, as the stream tells of it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, entry: Entry, seconds: float) -> None:
        if entry["kind"] == "steps":
            self._progress(f"{entry['doing']}, step {entry['seen']}, {seconds:.0f} s")
        if entry["kind"] == "measured":
            self._progress("measured; the script goes on to its end (Ctrl-C ends it)")


# -- rows ------------------------------------------------------------------------------


def _rows(
    states: list[StrategyState], plan: Plan, seen: Followed
) -> tuple[Measurement, ...]:
    rounds = _rounds(seen) if _graphs(seen) else {}
    eager, compiled = states
    for state in states:
        name = state.spec.strategy.name
        own = [entry for entry in seen.of("round") if entry["arm"] == name]
        facts: dict[str, Any] = {
            "rounds": [rounds[name]] if rounds else [],
            "steps": sum(entry["steps"] for entry in own),
            "interrupted": sum(entry["interrupted"] for entry in own),
            "numerics": None,
        }
        state.facts.append(facts | _compiled(state, seen))
    told = "measured in the same run, by torch's stance"
    eager.facts[0]["notes"] = [told] if rounds else []
    compiled.facts[0]["notes"] = list(_notes(seen, rounds))
    # There is nothing to paste: the script stays as it is.
    plain, row = (replace(r, source="") for r in rows.rows(states, plan, {}))
    plain = replace(plain, start=None)
    return plain, _with_break_even(row, plain, seen)


def _graphs(seen: Followed) -> int:
    counts: Mapping[str, int] | None = seen.last("compiled").get("counts")
    return counts["graphs"] if counts else 0


def _rounds(seen: Followed) -> dict[str, list[list[float]]]:
    """The rounds of each arm; none where they are too few for a verdict."""
    found: dict[str, list[list[float]]] = {}
    for entry in seen.entries:
        if entry["kind"] in {"start_over", "refused"}:
            found = {}
        if entry["kind"] == "round":
            found.setdefault(entry["arm"], []).append(entry["times_ms"])
    fewest = min(map(len, found.values()), default=0)
    return found if len(found) == 2 and fewest >= FEWEST_ROUNDS else {}


def _compiled(state: StrategyState, seen: Followed) -> dict[str, Any]:
    """What compiling cost, which eager steps know nothing of."""
    nothing = dict.fromkeys(("first_call_s", "imports_s", "compile_s", "cache"))
    quiet = {"counts": None, "compilations": 0, "steady": True}
    if state.spec.is_eager:
        return nothing | quiet
    again = sum(e["count"] for e in seen.of("compiled_while_timed"))
    steady = seen.last("settled").get("steady", True)
    counts = {"counts": {"graphs": 0}, "compilations": again, "steady": steady}
    told = {k: v for k, v in seen.last("compiled").items() if v is not None}
    return nothing | counts | told


def _notes(seen: Followed, rounds: Mapping[str, Any]) -> Iterator[str]:
    if not _graphs(seen):
        return  # which is said of every arm that compiles nothing
    steps = seen.last("steps")
    if seen.of("refused"):
        yield "the script sets the compiler's stance itself: no eager steps between"
    elif not rounds and steps:
        yield f"not enough steps: {steps['seen']} seen, about {steps['needed']} needed"
    calls = seen.last("settled").get("calls") or 1
    if calls > 1:
        yield f"a step is {calls} calls, as many as an optimizer step takes"
    yield "answers of a script are not compared"
    if rounds:
        yield "memory is not given, for one process ran both"


def _with_break_even(
    row: Measurement, eager: Measurement, seen: Followed
) -> Measurement:
    """As if eager's first step took as long as its others.

    What was compiled after the first call, in later steps, counts as well.
    """
    if row.vs_eager is None or row.first_call_s is None or eager.median_ms is None:
        return row
    first, last = seen.of("compiled")[0], seen.last("compiled")
    later_s = last["compile_s"]["total"] - first["compile_s"]["total"]
    spent_s = row.first_call_s + (last["imports_s"] or 0.0) + later_s
    ratio = stats.compare(eager.rounds_ms, row.rounds_ms, repeats=row.repeats)
    calls = seen.last("settled").get("calls") or 1
    usual_s = eager.median_ms / calls / 1e3
    found = stats.break_even(spent_s, usual_s, eager.median_ms, ratio)
    assert found is not None
    return replace(row, break_even=found.text, break_even_steps=found.steps)
