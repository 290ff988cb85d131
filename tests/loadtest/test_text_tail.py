"""Slow requests for text are explained by prefills, slots and stalls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from test_generation import STEP_S, Test, TimedSlots

from torchproof.measure.loadtest.tail import explain, explained
from torchproof.measure.loadtest.text_requests import TextRequest
from torchproof.measure.loadtest.text_tail import prefills, usual_times
from torchproof.records import LoadResult, Requests, Stall, Tail

PROMPT_S = 0.01  # of a short prompt
OUTPUT = 8


class PromptSlots(TimedSlots):
    """Prompts take as long as `prefill_s` says."""

    prefill_s: dict[int, float]

    def fill(self, slot: int, request: TextRequest) -> int:
        self.clock.time += self.prefill_s.get(request.number, PROMPT_S)
        self.occupied.add(slot)
        return request.number


@dataclass
class Served:
    """Requests that a server with known times answered."""

    folder: Path
    arrivals: Sequence[float]
    outputs: Sequence[int] = ()
    slots: int = 8
    long: dict[int, float] = field(default_factory=dict)  # prefills by request

    def requests(self) -> Requests:
        outputs = [*self.outputs] or [OUTPUT] * len(self.arrivals)
        test = Test(self.folder, [*self.arrivals], outputs)
        slots = PromptSlots(test.clock, self.slots)
        slots.prefill_s = self.long
        requests = test.run(slots)
        count = len(self.arrivals)
        # A long prompt has a padded size of its own.
        call = tuple(int(number in self.long) for number in range(count))
        prompts = tuple(500 if number in self.long else 20 for number in range(count))
        return replace(requests, call=call, prompt_tokens=prompts)


def tail_of(requests: Requests, *stalls: Stall) -> Tail:
    tail = explain(requests, [*stalls, *prefills(requests)], 0).warm
    assert tail is not None
    return tail


# A request takes about a second; the next one arrives before it ends.
STEADY = [0.6 * number for number in range(60)]


def test_a_long_prompt_delays_those_in_slots_and_those_that_arrive_meanwhile(
    tmp_path: Path,
) -> None:
    requests = Served(tmp_path, STEADY, long={30: 2.0}).requests()
    tail = tail_of(requests)
    [cause] = tail.causes
    assert (cause.code, cause.kind, cause.culprits) == ("LT112", "prefill", (30,))
    begin, first = requests.begin_s[30], requests.first_token_s[30]
    assert begin is not None and first is not None
    # Request 29 was in a slot; 31 to 33 arrived during the two seconds.
    assert cause.victims == (29, 31, 32, 33) == tail.slow
    assert all(begin < STEADY[n] < first for n in (31, 32, 33))
    assert cause.share == pytest.approx(1.0, abs=0.05)
    assert tail.unexplained_share == pytest.approx(0.0, abs=0.05)
    assert tail.load_share == 0 and tail.threshold_ms is None


def test_prefills_that_all_requests_share_are_silent(tmp_path: Path) -> None:
    tail = tail_of(Served(tmp_path, STEADY).requests())
    assert (tail.slow, tail.causes) == ((), ())


def test_a_long_answer_is_not_slow(tmp_path: Path) -> None:
    outputs = [64 if number == 30 else OUTPUT for number in range(60)]
    tail = tail_of(Served(tmp_path, STEADY, outputs).requests())
    assert tail.slow == ()


def test_waiting_for_a_slot_is_a_cause_without_culprits(tmp_path: Path) -> None:
    burst = [*STEADY[:30], *(18.0 + 0.01 * n for n in range(12)), *STEADY[40:]]
    requests = Served(tmp_path, burst, slots=2).requests()
    tail = tail_of(requests)
    cause = tail.causes[0]
    assert (cause.code, cause.kind, cause.culprits) == ("LT113", "slots", ())
    assert cause.victims[-1] == 41 and cause.stalls == ()
    assert (cause.share or 0) > 0.8


def test_slots_that_were_never_used_were_free(tmp_path: Path) -> None:
    """Short answers to a burst end before the prompts behind them begin."""
    # In sixteenths, which floating point adds exactly.
    arrivals = [*(0.625 * n for n in range(30)), *(20.0 + n / 1024 for n in range(6))]
    outputs = [3] * len(arrivals)
    requests = Served(tmp_path, arrivals, outputs).requests()
    every = prefills(requests)
    codes = {
        slots: {cause.code for cause in tail.causes}
        for slots in (0, 8)
        if (tail := explain(requests, every, 0, slots=slots).warm)
    }
    assert "LT113" in codes[0] and "LT113" not in codes[8]


def test_a_compilation_in_a_prefill_delays_all_slots(tmp_path: Path) -> None:
    requests = Served(tmp_path, STEADY, long={30: 2.0}).requests()
    requests = replace(requests, call=(0,) * 60)  # a prompt as short as the others
    begin, first = requests.begin_s[30], requests.first_token_s[30]
    assert begin is not None and first is not None
    compiling = Stall(
        kind="compile",
        begin_s=begin,
        end_s=first,
        text="first compilation",
        request=30,
        thread="MainThread",
    )
    tail = tail_of(requests, compiling)
    # The prefill was long because it compiled.
    assert (tail.causes[0].code, tail.causes[0].culprits) == ("LT102", (30,))
    assert tail.causes[0].victims == (29, 31, 32, 33)
    # The rest is waiting for each other's prefills when all begin at once.
    assert (tail.causes[0].share or 0) > 0.8 and tail.causes[1].code == "LT112"


def test_a_wait_for_a_cpu_stops_all_slots(tmp_path: Path) -> None:
    requests = Served(tmp_path, STEADY, long={30: 2.0}).requests()
    first = requests.first_token_s[30]
    assert first is not None
    waiting = Stall(
        kind="cpu", begin_s=first - 1.9, end_s=first, text="cpu", request=30
    )
    tail = tail_of(requests, waiting)
    assert tail.causes[0].code == "LT111"
    assert {29, 31} <= {*tail.causes[0].culprits, *tail.causes[0].victims}


def test_only_prefills_that_delayed_slow_requests_are_recorded(tmp_path: Path) -> None:
    requests = Served(tmp_path, STEADY, long={30: 2.0}).requests()
    collecting = Stall(kind="gc", begin_s=0.1, end_s=0.2, text="gc", request=0)
    result = explained(LoadResult("eager", requests=requests), [collecting], {})
    assert [(each.kind, each.request) for each in result.stalls] == [
        ("gc", 0),
        ("prefill", 30),
    ]
    assert result.tail is not None
    [cause] = [each for each in result.tail.causes if each.code == "LT112"]
    assert cause.stalls == (1,) and "500" in cause.text


def test_usual_times_grow_with_the_answer(tmp_path: Path) -> None:
    requests = Served(tmp_path, [0.0, 10.0, 20.0], [2, 4, 1]).requests()
    usual = usual_times(requests)
    expected = {0: PROMPT_S + STEP_S, 1: PROMPT_S + 3 * STEP_S, 2: PROMPT_S}
    assert usual == pytest.approx(expected)


def test_requests_of_other_models_have_no_prefills() -> None:
    requests = Requests(arrival_s=(0.0,), begin_s=(0.0,), end_s=(1.0,), call=(0,))
    assert prefills(requests) == () and usual_times(requests) == {}
