"""Slow requests are explained by the stalls that delayed them, in known schedules."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from torchproof.measure.loadtest.tail import Tails, explain, slow_above
from torchproof.measure.loadtest.tail_causes import describe, key_of
from torchproof.records import Requests, Stall, Tail

SERVICE_S = 0.010


def stall(kind: Any, begin_s: float, end_s: float, **fields: Any) -> Stall:
    fields.setdefault("text", kind)
    return Stall(kind=kind, begin_s=begin_s, end_s=end_s, **fields)


def recompile(begin_s: float, end_s: float, request: int) -> Stall:
    guard = {"cause": "size", "source": "x", "dim": 1, "expected": "8", "actual": "9"}
    return stall(
        "compile",
        begin_s,
        end_s,
        request=request,
        thread="worker-0",
        text="recompile of Net.forward: size 1 of x was 8, is 9",
        function="Net.forward",
        data={"guard": guard},
    )


def served(
    arrivals: Sequence[float],
    extra: Mapping[int, float] | None = None,
    *,
    workers: int = 1,
    services: Sequence[float] | None = None,
    call: Sequence[int] | None = None,
) -> Requests:
    """What a first-come-first-served queue records; `extra` are longer services."""
    free = [(0.0, worker) for worker in range(workers)]
    begins, ends, who = [], [], []
    for number, arrival in enumerate(arrivals):
        at, worker = heapq.heappop(free)
        begin = max(at, arrival)
        service = services[number] if services is not None else SERVICE_S
        end = begin + service + (extra or {}).get(number, 0.0)
        heapq.heappush(free, (end, worker))
        begins.append(begin)
        ends.append(end)
        who.append(worker)
    return Requests(
        arrival_s=tuple(arrivals),
        begin_s=tuple(begins),
        end_s=tuple(ends),
        call=tuple(call or (0,) * len(arrivals)),
        worker=tuple(who),
        batch=(1,) * len(arrivals),
    )


def warm(tails: Tails) -> Tail:
    assert tails.warm is not None
    return tails.warm


def shares(tail: Tail) -> float:
    return sum(
        share or 0.0
        for share in (
            *(cause.share for cause in tail.causes),
            tail.load_share,
            tail.unexplained_share,
        )
    )


EVERY_20_MS = [0.020 * number for number in range(100)]


def test_a_recompile_has_its_culprit_and_the_requests_behind_it_as_victims() -> None:
    requests = served(EVERY_20_MS, {40: 0.200})
    begin = requests.begin_s[40]
    assert begin is not None
    tail = warm(explain(requests, [recompile(begin + 0.001, begin + 0.201, 40)], 0))
    [cause] = tail.causes
    assert cause.code == "LT101" and cause.kind == "compile"
    assert cause.culprits == (40,)
    # The backlog of 200 ms drains at 10 ms per request, also of those that arrive
    # after the stall.
    assert cause.victims == tuple(range(41, 60))
    assert tail.slow == tuple(range(40, 60))
    assert cause.share == pytest.approx(1.0) and shares(tail) == pytest.approx(1.0)
    assert tail.excess_ms == pytest.approx(sum(200 - 10 * n for n in range(20)))
    assert "576" not in cause.remedy and "to 9" in cause.remedy


def test_a_long_service_without_a_stall_is_unexplained() -> None:
    tail = warm(explain(served(EVERY_20_MS, {40: 0.200}), [], 0))
    assert tail.causes == ()
    assert tail.unexplained_share == pytest.approx(1.0)
    assert tail.slow[0] == 40


def test_a_steady_schedule_has_no_slow_requests() -> None:
    harmless = [stall("gc", 0.5, 0.5006, request=25, thread="worker-0")]
    tail = warm(explain(served(EVERY_20_MS), harmless, 0))
    assert (tail.slow, tail.causes) == ((), ())
    assert tail.unexplained_share is None


def test_a_stall_that_delays_nobody_is_no_cause() -> None:
    requests = served(EVERY_20_MS, {40: 0.200})
    idle = stall("gc", 1.8105, 1.8195, thread="other", data={"generation": 2})
    assert warm(explain(requests, [idle], 0)).causes == ()


def test_waiting_behind_usual_services_is_load() -> None:
    arrivals = [0.5 * number for number in range(50)]
    arrivals = sorted([*arrivals, *[10.0 + 0.001 * n for n in range(1, 12)]])
    tail = warm(explain(served(arrivals), [], 0))
    assert tail.slow and tail.load_share == pytest.approx(1.0)
    assert tail.unexplained_share == pytest.approx(0.0)


def test_a_call_that_always_takes_longer_is_load() -> None:
    call = [1 if number % 10 == 0 else 0 for number in range(100)]
    services = [0.018 if each else SERVICE_S for each in call]
    requests = served(EVERY_20_MS, services=services, call=call)
    tail = warm(explain(requests, [], 0))
    assert len(tail.slow) == 10 and tail.load_share == pytest.approx(1.0)


def test_garbage_collection_delays_requests_of_all_workers() -> None:
    arrivals = [0.010 * number for number in range(200)]
    requests = served(arrivals, {100: 0.150, 101: 0.140}, workers=2)
    begin = requests.begin_s[100]
    assert begin is not None
    collection = stall(
        "gc",
        begin,
        begin + 0.150,
        request=100,
        thread="worker-0",
        data={"generation": 2},
    )
    [cause] = warm(explain(requests, [collection], 0)).causes
    assert cause.code == "LT103" and "gc.freeze" in cause.remedy
    assert cause.culprits == (100,)
    assert 101 in cause.victims and 102 in cause.victims
    assert cause.share is not None and cause.share > 0.9


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("/env/lib/python3.11/site-packages/bert/model.py", "(bert/model.py:7)"),
        ("/tmp/torchproof-a1b2/inductor/4d/c4dq.py", "(in compiled code)"),
    ],
)
def test_places_are_short(file: str, where: str) -> None:
    collection = stall("gc", 0.0, 0.1, file=file, line=7)
    text, _ = describe(key_of(collection), [collection])
    assert text.endswith(where)


def test_a_thread_that_holds_the_gil_has_victims_and_no_culprit() -> None:
    requests = served(EVERY_20_MS, {50: 0.200})
    held = stall("gil", 1.001, 1.201, thread="metrics", file="app.py", line=7)
    [cause] = warm(explain(requests, [held], 0)).causes
    assert cause.code == "LT105" and "metrics" in cause.remedy
    assert cause.culprits == () and cause.victims[:2] == (50, 51)


@pytest.mark.parametrize(
    "held",
    [
        {"thread": "worker-0", "request": 50},  # the request's own code
        {"thread": None},  # nobody knows whose code
    ],
)
def test_a_gil_that_nobody_else_held_explains_nothing(held: dict[str, Any]) -> None:
    requests = served(EVERY_20_MS, {50: 0.200})
    tail = warm(explain(requests, [stall("gil", 1.001, 1.201, **held)], 0))
    assert tail.causes == () and tail.unexplained_share == pytest.approx(1.0)


def test_stalls_inside_another_count_once() -> None:
    requests = served(EVERY_20_MS, {40: 0.200})
    begin = requests.begin_s[40]
    assert begin is not None
    inner = stall("inductor", begin + 0.05, begin + 0.15, thread="worker-0", request=40)
    kernel = stall("triton", begin + 0.06, begin + 0.10, thread="worker-0", request=40)
    held = stall("gil", begin + 0.02, begin + 0.19, thread="worker-0", request=40)
    stalls = [recompile(begin, begin + 0.200, 40), inner, kernel, held]
    [cause] = warm(explain(requests, stalls, 0)).causes
    assert cause.stalls == (0,) and cause.share == pytest.approx(1.0)
    parts = cause.other["parts_ms"]
    assert parts["inductor"] == pytest.approx(100)
    assert parts["triton"] == pytest.approx(40)


def test_two_causes_share_the_excess_they_cause_together() -> None:
    requests = served(EVERY_20_MS, {40: 0.200, 45: 0.100})
    begins = [requests.begin_s[number] for number in (40, 45)]
    assert None not in begins
    first, second = (begin for begin in begins if begin is not None)
    collection = stall(
        "gc", second, second + 0.1, request=45, thread="w", data={"generation": 2}
    )
    tail = warm(explain(requests, [recompile(first, first + 0.2, 40), collection], 0))
    assert [cause.code for cause in tail.causes] == ["LT101", "LT103"]
    assert [cause.culprits for cause in tail.causes] == [(40,), (45,)]
    assert shares(tail) == pytest.approx(1.0)
    assert tail.unexplained_share == pytest.approx(0.0, abs=0.01)


def test_a_batch_is_culprit_as_a_whole() -> None:
    requests = Requests(
        arrival_s=(0.0, 0.001, 0.1, 0.101, 0.2, 0.201, 0.3, 0.301, 0.4, 0.401),
        begin_s=(0.01, 0.01, 0.11, 0.11, 0.21, 0.21, 0.31, 0.31, 0.41, 0.41),
        end_s=(0.02, 0.02, 0.12, 0.12, 0.28, 0.28, 0.32, 0.32, 0.42, 0.42),
        call=(0,) * 10,
        worker=(0,) * 10,
        batch=(2,) * 10,
    )
    [cause] = warm(explain(requests, [recompile(0.212, 0.272, 4)], 0)).causes
    assert cause.culprits == (4, 5) and cause.victims == ()


def test_the_cold_phase_is_explained_apart() -> None:
    requests = served(EVERY_20_MS, {0: 0.5, 90: 0.05})
    first = stall(
        "compile", 0.0, 0.5, request=0, thread="w", text="first compilation", data={}
    )
    begin = requests.begin_s[90]
    assert begin is not None
    tails = explain(requests, [first, recompile(begin, begin + 0.05, 90)], 60)
    assert tails.cold is not None and tails.warm is not None
    assert [cause.code for cause in tails.cold.causes] == ["LT102"]
    assert [cause.code for cause in tails.warm.causes] == ["LT101"]
    assert tails.warm.causes[0].culprits == (90,)
    assert tails.warm.causes[0].share == pytest.approx(1.0)
    assert max(tails.cold.slow) < 60 <= min(tails.warm.slow)


def test_a_compilation_in_the_background_has_no_culprit() -> None:
    requests = served(EVERY_20_MS, dict.fromkeys(range(20, 40), 0.004))
    begin, end = requests.begin_s[20], requests.end_s[39]
    assert begin is not None and end is not None
    compiled = stall(
        "compile", begin, end, thread="torchproof-forward", data={"background": True}
    )
    [cause] = warm(explain(requests, [compiled], 0)).causes
    assert cause.code == "LT110" and cause.culprits == ()
    assert set(cause.victims) == set(range(20, 40))


def test_requests_that_were_not_served_are_left_out() -> None:
    requests = Requests(
        arrival_s=(0.0, 0.1, 0.2),
        begin_s=(0.0, None, 0.2),
        end_s=(0.01, None, 0.21),
        call=(0, 0, 0),
        worker=(0, None, 0),
        batch=(1, None, 1),
        rejected=(1,),
    )
    assert warm(explain(requests, [], 0)).slow == ()


def test_errors_change_neither_the_median_nor_the_usual_service() -> None:
    quick = [0.0001 if number % 3 else SERVICE_S for number in range(100)]
    requests = served(EVERY_20_MS, services=quick)
    failed = tuple(number for number in range(100) if number % 3)
    assert warm(explain(requests, [], 0)).slow  # the control: as if those were answers
    assert warm(explain(replace(requests, failed=failed), [], 0)).slow == ()
    blind = explain(requests, [], 0, {"gil": "no statistics"})
    assert warm(blind).missing == {"gil": "no statistics"}
    none_left = replace(requests, failed=tuple(range(100)))
    assert explain(none_left, [], 0) == Tails(None, None)


def test_a_request_that_fails_can_be_a_culprit() -> None:
    requests = replace(served(EVERY_20_MS, {40: 0.200}), failed=(40,))
    begin = requests.begin_s[40]
    assert begin is not None
    tail = warm(explain(requests, [recompile(begin, begin + 0.200, 40)], 0))
    assert tail.causes[0].culprits == (40,)
    assert tail.causes[0].victims == tuple(range(41, 60))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [1, 3])
def test_shares_sum_to_one_in_any_schedule(seed: int, workers: int) -> None:
    """Random arrivals, services and stalls, some of which overlap."""
    draw = random.Random(seed)
    arrivals, now = [], 0.0
    for _ in range(300):
        now += draw.expovariate(40 * workers)
        arrivals.append(now)
    services = [draw.uniform(0.006, 0.012) for _ in arrivals]
    extra = {number: draw.uniform(0.02, 0.2) for number in draw.sample(range(300), 6)}
    requests = served(arrivals, extra, workers=workers, services=services)
    stalls = []
    for number, seconds in extra.items():
        begin = requests.begin_s[number]
        assert begin is not None
        stalls.append(recompile(begin, begin + seconds, number))
    at = draw.uniform(0, now)
    stalls.append(stall("gil", at, at + 0.1, thread="other"))
    stalls.append(stall("gc", at + 0.05, at + 0.15, thread="x", data={"generation": 2}))
    for tail in explain(requests, stalls, 100):
        assert tail is not None and tail.slow
        assert math.isclose(shares(tail), 1.0, abs_tol=1e-6)
        assert all((cause.share or 0) >= 0 for cause in tail.causes)
        assert all(set(cause.culprits) <= set(tail.slow) for cause in tail.causes)


def test_the_threshold_is_above_the_spread_of_usual_latencies() -> None:
    assert slow_above([0.010] * 9 + [1.0]) == pytest.approx(0.0125)
    wide = [0.010 + 0.001 * number for number in range(11)]
    assert slow_above(wide) > max(wide)
    half_delayed = [0.010] * 6 + [0.5 + number for number in range(5)]
    assert slow_above(half_delayed) < 0.5
