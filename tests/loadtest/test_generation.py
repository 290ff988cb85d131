"""Continuous batching on a clock that only the imitated model advances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from torchproof.measure.loadtest.generation import TextSource, serve_generation
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.serving import Served
from torchproof.measure.loadtest.text_requests import TextRequest
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import Requests

PREFILL_S, STEP_S = 0.5, 0.125


class VirtualClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


class TimedSlots:
    """Counts tokens, and takes a known time for each prompt and each step."""

    def __init__(self, clock: VirtualClock, count: int) -> None:
        self.clock, self.count = clock, count
        self.occupied: set[int] = set()
        self.together: list[int] = []
        self.fails_at: set[int] = set()  # prompts
        self.failing_steps: set[int] = set()

    def fill(self, slot: int, request: TextRequest) -> int:
        assert slot not in self.occupied
        self.clock.time += PREFILL_S
        if request.number in self.fails_at:
            raise ValueError("no prompt")
        self.occupied.add(slot)
        return request.number

    def step(self, numbers: Mapping[int, int]) -> list[int]:
        assert {*numbers} == self.occupied
        self.clock.time += STEP_S
        self.together.append(len(numbers))
        if len(self.together) in self.failing_steps:
            raise ValueError("no step")
        return [numbers.get(slot, -1) for slot in range(self.count)]

    def free(self, slot: int) -> None:
        self.occupied.remove(slot)


class Test:
    """One test of `arrivals`, each request with so many output tokens."""

    __test__ = False

    def __init__(self, path: Path, arrivals: list[float], outputs: list[int]) -> None:
        self.clock = VirtualClock()
        self.arrivals, self.outputs = arrivals, outputs
        self.timetable = Timetable(
            tuple(arrivals), (0,) * len(arrivals), max(arrivals) + 1
        )
        self.log = RequestLog(path / "log", len(arrivals), create=True)
        self.tokens: dict[int, list[int]] = {}

    def run(self, slots: TimedSlots, queue_limit: int | None = None) -> Requests:
        source = TextSource(
            lambda number: TextRequest(number, np.zeros(1), self.outputs[number], 0),
            receive=self.tokens.__setitem__,
            queue_limit=queue_limit,
        )
        self.served: Served = serve_generation(
            slots, source, self.timetable, self.log, clock=self.clock
        )
        return self.log.requests(self.timetable)


def test_the_first_token_comes_with_the_prompt_and_the_others_with_steps(
    tmp_path: Path,
) -> None:
    test = Test(tmp_path, [2.0], [5])
    requests = test.run(TimedSlots(test.clock, 4))
    assert requests.begin_s == (2.0,)
    assert requests.first_token_s == (2.0 + PREFILL_S,)
    assert requests.end_s == (2.0 + PREFILL_S + 4 * STEP_S,)
    assert requests.output_tokens == (5,)
    assert test.tokens == {0: [0, 1, 2, 3, 4]}


def test_one_token_needs_no_step(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0], [1])
    slots = TimedSlots(test.clock, 1)
    requests = test.run(slots)
    assert requests.end_s == (PREFILL_S,)
    assert slots.together == []


def test_a_request_joins_others_between_two_steps(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.6], [8, 2])
    slots = TimedSlots(test.clock, 2)
    requests = test.run(slots)
    # The second arrives in the first step, and begins after it.
    assert requests.begin_s[1] == pytest.approx(PREFILL_S + STEP_S)
    assert requests.batch == (1, 2)
    assert slots.together == [1, 2, 1, 1, 1, 1, 1]
    # Its prompt delays the first by one prefill.
    assert requests.end_s[0] == pytest.approx(2 * PREFILL_S + 7 * STEP_S)


def test_a_prompt_waits_for_one_step_of_the_others(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.0, 0.0], [9, 9, 9])
    requests = test.run(TimedSlots(test.clock, 3))
    gap = PREFILL_S + STEP_S
    assert requests.begin_s == pytest.approx((0.0, gap, 2 * gap))


def test_a_request_waits_for_a_slot(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.1], [3, 3])
    requests = test.run(TimedSlots(test.clock, 1))
    assert requests.begin_s[1] == requests.end_s[0]
    assert requests.first_token_s[1] == pytest.approx(2 * PREFILL_S + 2 * STEP_S)


def test_a_full_queue_rejects(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.1, 0.2, 0.3, 9.0], [4, 4, 4, 4, 4])
    requests = test.run(TimedSlots(test.clock, 1), queue_limit=1)
    assert requests.rejected == (2, 3)
    assert requests.end_s[2] is None
    assert {0, 1, 4} == {*test.tokens}


def test_without_a_queue_requests_need_a_free_slot(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.0, 0.0], [4, 4, 4])
    requests = test.run(TimedSlots(test.clock, 2), queue_limit=0)
    assert requests.rejected == (2,)


def test_a_long_queue_rejects_nothing(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0] * 6, [2] * 6)
    requests = test.run(TimedSlots(test.clock, 1), queue_limit=5)
    assert requests.rejected == ()
    assert len(test.tokens) == 6


def test_a_prompt_that_fails_leaves_its_slot(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.0], [2, 2])
    slots = TimedSlots(test.clock, 1)
    slots.fails_at = {0}
    requests = test.run(slots)
    assert requests.failed == (0,)
    assert requests.output_tokens == (0, 2)
    assert {**test.served.errors} == {"ValueError: no prompt": 1}
    assert {*test.tokens} == {1}


def test_a_step_that_fails_ends_what_it_served(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.0, 5.0], [9, 9, 2])
    slots = TimedSlots(test.clock, 2)
    slots.failing_steps = {3}
    requests = test.run(slots)
    assert requests.failed == (0, 1)
    assert sum(test.served.errors.values()) == 2
    assert requests.output_tokens[2] == 2


def test_a_test_that_is_stopped_keeps_what_was_answered(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0, 0.0, 50.0], [2, 90, 2])
    slots = TimedSlots(test.clock, 2)
    received = test.tokens.__setitem__

    class Stops(dict[int, list[int]]):
        def __setitem__(self, number: int, tokens: list[int]) -> None:
            received(number, tokens)
            test.log.stop()

    test.tokens = Stops()
    requests = test.run(slots)
    assert test.served.stopped
    assert requests.end_s[0] is not None
    assert requests.end_s[1:] == (None, None)


def test_a_test_that_cannot_keep_up_ends(tmp_path: Path) -> None:
    test = Test(tmp_path, [float(number) for number in range(40)], [100] * 40)
    requests = test.run(TimedSlots(test.clock, 1))
    assert None in requests.end_s
    assert test.clock.now() - 1000.0 < 3 * test.timetable.length_s


def test_under_load_every_step_serves_all_slots(tmp_path: Path) -> None:
    test = Test(tmp_path, [0.0] * 60, [33] * 60)
    slots = TimedSlots(test.clock, 8)
    test.run(slots)
    assert {*slots.together[8:]} == {8}
