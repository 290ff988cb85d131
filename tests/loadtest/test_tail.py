"""Slow requests are explained by the stalls that delayed them, in known schedules."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import load_runs
import pytest

from torchproof.measure.loadtest.tail import Tails, explain, slow_above
from torchproof.measure.loadtest.tail_causes import describe, key_of
from torchproof.records import Requests, Stall, Tail

SERVICE_S = 0.010


def stall(kind: Any, begin_s: float, end_s: float, **fields: Any) -> Stall:
    fields.setdefault("text", kind)
    return Stall(kind=kind, begin_s=begin_s, end_s=end_s, **fields)


GUARD = {"cause": "size", "source": "x", "dim": 1, "expected": "8", "actual": "9"}


def recompile(begin_s: float, end_s: float, request: int) -> Stall:
    return stall(
        "compile",
        begin_s,
        end_s,
        request=request,
        thread="worker-0",
        text="recompile of Net.forward: size 1 of x was 8, is 9",
        function="Net.forward",
        data={"guard": GUARD},
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
    times = list(services or [SERVICE_S] * len(arrivals))
    for number, seconds in (extra or {}).items():
        times[number] += seconds
    call = call or (0,) * len(arrivals)
    return load_runs.queued(arrivals, times, workers=workers, call=call)


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
LATE = 40  # the request whose service takes 200 ms longer
BEGIN = 0.020 * LATE


def delayed(*stalls: Stall, **changes: Any) -> Tail:
    requests = served(EVERY_20_MS, {LATE: 0.200})
    return warm(explain(replace(requests, **changes), stalls, 0))


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("compile", {"data": {"guard": GUARD}}, "LT101"),
        ("compile", {}, "LT102"),
        ("gc", {"data": {"generation": 2}}, "LT103"),
        ("cudagraph", {"data": {"again": True}}, "LT104"),
        ("gil", {"thread": "metrics", "request": None}, "LT105"),
        ("fallback", {}, "LT106"),
        ("allocator", {"request": None}, "LT107"),
        ("inductor", {}, "LT109"),
        ("triton", {}, "LT109"),
        ("compile", {"request": None, "data": {"background": True}}, "LT110"),
        ("cpu", {}, "LT111"),
    ],
)
def test_a_stall_explains_its_request_and_those_behind_it(
    kind: Any, fields: dict[str, Any], code: str
) -> None:
    fields = {"request": LATE, "thread": "worker-0"} | fields
    tail = delayed(stall(kind, BEGIN + 0.001, BEGIN + 0.201, **fields))
    [cause] = tail.causes
    assert (cause.code, cause.kind) == (code, kind) and cause.text and cause.remedy
    # The backlog of 200 ms drains at 10 ms per request, also of those that arrive
    # after the stall. A stall of no request has victims alone.
    own = fields["request"] is not None
    assert cause.culprits == ((LATE,) if own else ())
    assert cause.victims == tuple(range(LATE + own, LATE + 20))
    assert tail.slow == tuple(range(LATE, LATE + 20))
    assert cause.share == pytest.approx(1.0, abs=0.01)
    assert shares(tail) == pytest.approx(1.0)
    assert tail.excess_ms == pytest.approx(sum(200 - 10 * n for n in range(20)))


def test_a_remedy_has_the_largest_size_and_the_name_of_the_thread() -> None:
    [cause] = delayed(recompile(BEGIN, BEGIN + 0.2, LATE)).causes
    assert "to 9" in cause.remedy and "8, 9" in cause.text
    held = stall("gil", BEGIN, BEGIN + 0.2, thread="metrics", file="app.py", line=7)
    [cause] = delayed(held).causes
    assert "metrics" in cause.remedy and cause.text.endswith("(app.py:7)")


@pytest.mark.parametrize(
    "harmless",
    [
        None,
        stall("gc", 1.8105, 1.8195, thread="other", data={"generation": 2}),
        # The request's own code held the GIL, or nobody knows whose.
        stall("gil", BEGIN, BEGIN + 0.2, thread="worker-0", request=LATE),
        stall("gil", BEGIN, BEGIN + 0.2),
        stall("cpu", BEGIN, BEGIN + 0.2, thread="worker-1", request=90),
    ],
)
def test_a_long_service_that_no_stall_delays_is_unexplained(
    harmless: Stall | None,
) -> None:
    tail = delayed(*([harmless] if harmless else []))
    assert tail.causes == () and tail.slow[0] == LATE
    assert tail.unexplained_share == pytest.approx(1.0)


def test_a_steady_schedule_has_no_slow_requests() -> None:
    harmless = [stall("gc", 0.5, 0.5006, request=25, thread="worker-0")]
    tail = warm(explain(served(EVERY_20_MS), harmless, 0))
    assert (tail.slow, tail.causes, tail.unexplained_share) == ((), (), None)


def test_usual_services_are_load() -> None:
    """Waiting behind them, and a call that always takes longer than the others."""
    crowd = [10.0 + 0.001 * n for n in range(1, 12)]
    arrivals = sorted([*(0.5 * number for number in range(50)), *crowd])
    waiting = warm(explain(served(arrivals), [], 0))
    call = [1 if number % 10 == 0 else 0 for number in range(100)]
    services = [0.018 if each else SERVICE_S for each in call]
    longer = warm(explain(served(EVERY_20_MS, services=services, call=call), [], 0))
    assert len(longer.slow) == 10
    for tail in (waiting, longer):
        assert tail.slow and tail.load_share == pytest.approx(1.0)
        assert tail.unexplained_share == pytest.approx(0.0)


def test_garbage_collection_delays_requests_of_all_workers() -> None:
    arrivals = [0.010 * number for number in range(200)]
    requests = served(arrivals, {100: 0.150, 101: 0.140}, workers=2)
    data = {"generation": 2}
    collection = stall("gc", 1.0, 1.15, request=100, thread="worker-0", data=data)
    [cause] = warm(explain(requests, [collection], 0)).causes
    assert (cause.code, cause.culprits) == ("LT103", (100,))
    assert {101, 102} <= {*cause.victims}
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


def test_stalls_inside_another_count_once() -> None:
    place: dict[str, Any] = {"thread": "worker-0", "request": LATE}
    inner = stall("inductor", BEGIN + 0.05, BEGIN + 0.15, **place)
    kernel = stall("triton", BEGIN + 0.06, BEGIN + 0.10, **place)
    held = stall("gil", BEGIN + 0.02, BEGIN + 0.19, **place)
    whole = recompile(BEGIN, BEGIN + 0.200, LATE)
    [cause] = delayed(whole, inner, kernel, held).causes
    assert cause.stalls == (0,) and cause.share == pytest.approx(1.0)


def test_two_causes_share_the_excess_they_cause_together() -> None:
    requests = served(EVERY_20_MS, {LATE: 0.200, 45: 0.100})
    begin = requests.begin_s[45]
    assert begin is not None
    collection = stall("gc", begin, begin + 0.1, request=45, thread="w")
    stalls = [recompile(BEGIN, BEGIN + 0.2, LATE), collection]
    tail = warm(explain(requests, stalls, 0))
    found = [(cause.code, cause.culprits) for cause in tail.causes]
    assert found == [("LT101", (LATE,)), ("LT103", (45,))]
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
    first = stall("compile", 0.0, 0.5, request=0, thread="w", text="first compilation")
    cold, later = explain(requests, [first, recompile(1.8, 1.85, 90)], 60)
    assert cold is not None and later is not None
    assert [cause.code for cause in cold.causes] == ["LT102"]
    [cause] = later.causes
    assert (cause.code, cause.culprits) == ("LT101", (90,))
    assert cause.share == pytest.approx(1.0)
    assert max(cold.slow) < 60 <= min(later.slow)


def test_requests_without_an_answer_are_left_out() -> None:
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
    # A request that fails can be a culprit.
    [cause] = delayed(recompile(BEGIN, BEGIN + 0.200, LATE), failed=(LATE,)).causes
    assert (cause.culprits, cause.victims) == ((LATE,), tuple(range(41, 60)))


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
