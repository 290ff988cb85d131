"""What a step of a script is, and what rounds of steps give as rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts import numbers

from torchproof.measure import script_bench, script_bench_worker
from torchproof.measure.specs import AS_WRITTEN, Plan
from torchproof.measure.strategy_state import StrategyState
from torchproof.observe.step_detector import StepDetector
from torchproof.process.streams import Followed
from torchproof.records.run import Measurement
from torchproof.targets.target import parse

# -- what the parent makes of a stream -------------------------------------------------


def judged(*entries: dict[str, Any], ending: str = "finished") -> list[Measurement]:
    target = parse(__file__)
    states = [StrategyState(spec, Path("none")) for spec in AS_WRITTEN]
    plan = Plan(target, AS_WRITTEN)
    return [*script_bench._rows(states, plan, Followed(list(entries), ending, 0))]


def turns(count: int, eager_ms: float = 2.0) -> list[dict[str, Any]]:
    return [
        {
            "kind": "round",
            "strategy": strategy,
            "sampled": {"times_ms": times, "interrupted": [False] * 3},
        }
        for number in range(count)
        for strategy, ms in (("eager", eager_ms), ("as-written", 1.0))
        for times in [[ms * (1 + number % 3 / 100)] * 3]
    ]


COMPILED: dict[str, Any] = {
    "kind": "compiled",
    "first_call_s": 3.0,
    "imports_s": 2.0,
    "compile_s": {"dynamo": 1.0, "total": 1.0},
    "counts": {"graphs": 1, "recompiles": 0},
    "cache": None,
}
STEPS = {"kind": "steps", "seen": 40, "needed": 90, "doing": "warming up"}


def test_rounds_of_a_stream_that_was_cut_off_are_kept() -> None:
    eager, compiled = judged(COMPILED, *turns(6)[:-1], ending="timeout")
    assert len(eager.rounds_ms) == len(compiled.rounds_ms) == 5
    assert (eager.median_ms, compiled.median_ms) == pytest.approx((2.0, 1.0), rel=0.02)


def test_a_script_has_times_and_no_ratio() -> None:
    eager, compiled = judged(COMPILED, *turns(8))
    assert eager.verdict == "reference" and compiled.verdict == "unverified"
    assert compiled.numerics and compiled.numerics["verdict"] is None
    assert compiled.vs_eager is compiled.median_ratio is compiled.break_even is None
    assert (compiled.processes, compiled.interval_over) == (1, "rounds")
    assert compiled.tail and compiled.tail["samples"] == 24


def test_too_few_rounds_give_no_verdict() -> None:
    eager, compiled = judged(COMPILED, *turns(3), STEPS)
    assert (eager.median_ms, compiled.median_ms) == (None, None)
    assert compiled.verdict == "not measured"
    assert any(numbers(note) == [40, 90] for note in compiled.notes)


def test_a_script_that_compiles_nothing_is_detected() -> None:
    nothing = dict.fromkeys(COMPILED) | {"kind": "compiled"}
    for entries in ([nothing, STEPS], [COMPILED | {"counts": {"graphs": 0}}]):
        eager, compiled = judged(*entries, *turns(8))
        [note] = compiled.notes
        assert "torchproof check" in note
        assert compiled.verdict == "not measured" and eager.median_ms is None


def test_rounds_before_a_new_kind_of_step_do_not_count() -> None:
    entries = [*turns(5, 9.0), {"kind": "start_over"}, *turns(5)]
    eager, _ = judged(COMPILED, *entries)
    assert eager.median_ms == pytest.approx(2.0, rel=0.02)
    few, _ = judged(COMPILED, *turns(5), {"kind": "start_over"}, *turns(2), STEPS)
    assert few.median_ms is None


def test_a_filled_cache_is_not_called_cold() -> None:
    counted = {"hits": 1, "misses": 0, "bypasses": 0}
    lookup = {"cache": "inductor", "hit": True, "own": False}
    found = {"lookups": [lookup], "filled_before": None}
    _, compiled = judged(COMPILED | {"cache": counted | found}, *turns(8))
    assert compiled.first_call_s is None and compiled.break_even is None
    assert compiled.start is not None and "cache" in compiled.start["refused"]


def test_device_events_are_read_after_the_last_one_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached: list[float] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.ms = 2.5 * next(numbers)

        def synchronize(self) -> None:
            reached.append(self.ms)

        def elapsed_time(self, end: Event) -> float:
            assert reached and end.ms <= reached[-1]
            return end.ms - self.ms

    numbers = itertools.count()
    monkeypatch.setattr(
        script_bench_worker, "_cuda", lambda: SimpleNamespace(Event=Event)
    )
    mark = script_bench_worker._marker()
    assert script_bench_worker._between([mark() for _ in range(4)]) == [2.5, 2.5, 2.5]


# -- what a step is --------------------------------------------------------------------


class Detected:
    """The steps that a detector saw begin, and how often their kind changed."""

    def __init__(self) -> None:
        self.begun = self.changed = 0
        self.steps = StepDetector(self._begins, self._changes)

    def _begins(self) -> None:
        self.begun += 1

    def _changes(self) -> None:
        self.changed += 1

    def call(self, number: int = 0) -> None:
        self.steps._enter(number)()

    def optimize(self, optimizer: object) -> None:
        self.steps._optimizer_stepped(optimizer, (), {})


def test_the_first_of_several_compiled_blocks_marks_the_step() -> None:
    detected = Detected()
    for _ in range(4):
        for number in (3, 1, 2, 1):
            detected.call(number)
    assert (detected.begun, detected.changed) == (4, 0)


def test_a_call_within_a_call_begins_no_step() -> None:
    detected = Detected()
    for _ in range(3):
        leave = detected.steps._enter(0)
        detected.call(0)
        leave()
    assert detected.begun == 3


def test_what_was_compiled_for_one_call_does_not_mark_steps_for_ever() -> None:
    detected = Detected()
    detected.call(0)
    for _ in range(30):
        detected.call(1)
    assert detected.changed == 1 and detected.begun == 22


def test_evaluation_before_training_does_not_decide_what_a_step_is() -> None:
    detected, main, other = Detected(), SimpleNamespace(), SimpleNamespace()
    for _ in range(20):
        detected.call()
    detected.steps.fix()
    assert detected.steps.calls == 1
    for _ in range(5):
        for optimizer in (main, other):
            detected.call()
            detected.call()
            detected.optimize(optimizer)
    detected.steps.fix()
    assert detected.changed == 1 and detected.steps.calls == 4
    before = detected.begun
    detected.steps.eager = True  # where an optimizer may be seen that is compiled else
    for _ in range(4):
        detected.call()
        detected.optimize(other)
    assert detected.begun == before + 1
