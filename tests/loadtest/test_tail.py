"""Slow requests are explained by the stalls that delayed them, in known schedules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import load_runs
import pytest

from torchproof.checking.rules.rule import PROSE
from torchproof.measure.loadtest.tail import Tails, explain, slow_above
from torchproof.records import Requests, Stall, Tail

SERVICE_S = 0.010
EVERY_20_MS = [0.020 * number for number in range(100)]
LATE = 40  # the request whose service takes 200 ms longer
BEGIN = 0.020 * LATE
GUARD = {
    "cause": "size",
    "source": "x",
    "dim": 1,
    "expected": "8",
    "actual": "9",
    "changed": "size 1 of x was 8, is 9",
    "compiled": "Net.forward",
}
ANSWER_40: dict[str, Any] = {"request": LATE, "thread": "worker-0"}
ELSEWHERE = {"request": None, "thread": "metrics"}


def stall(
    kind: Any, begin_s: float = BEGIN, seconds: float = 0.2, **fields: Any
) -> Stall:
    fields = {"text": kind, **ANSWER_40} | fields
    return Stall(kind=kind, begin_s=begin_s, end_s=begin_s + seconds, **fields)


def recompile(begin_s: float, seconds: float, request: int) -> Stall:
    return stall(
        "compile",
        begin_s,
        seconds,
        request=request,
        text="recompile of Net.forward: size 1 of x was 8, is 9",
        function="Net.forward",
        data={"guard": GUARD},
    )


def served(
    arrivals: Sequence[float] = EVERY_20_MS,
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
    each = [cause.share for cause in tail.causes]
    return sum(
        share or 0.0 for share in (*each, tail.load_share, tail.unexplained_share)
    )


# -- one late request ------------------------------------------------------------------

LATE_REQUESTS = served(extra={LATE: 0.200})


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("compile", {"data": {"guard": GUARD}}, "LT101"),
        ("compile", {}, "LT102"),
        ("gc", {"data": {"generation": 2}}, "LT103"),
        ("cudagraph", {"data": {"again": True}}, "LT104"),
        ("fallback", {}, "LT106"),
        ("allocator", {"request": None}, "LT107"),
        ("inductor", {}, "LT109"),
        ("triton", {}, "LT109"),
        ("compile", {**ELSEWHERE, "data": {"background": True}}, "LT110"),
        ("cpu", {}, "LT111"),
    ],
)
def test_a_stall_explains_its_request_and_those_behind_it(
    kind: Any, fields: dict[str, Any], code: str
) -> None:
    own = stall(kind, BEGIN + 0.001, **fields)
    tail = warm(explain(LATE_REQUESTS, [own], 0))
    [cause] = tail.causes
    assert (cause.code, cause.kind) == (code, kind) and cause.text and cause.remedy
    assert len(cause.remedy) <= PROSE
    # The backlog of 200 ms drains at 10 ms per request, also of those that arrive
    # after the stall. A stall of no request has victims alone.
    culprit = own.request is not None
    assert cause.culprits == ((LATE,) if culprit else ())
    assert cause.victims == tuple(range(LATE + culprit, LATE + 20))
    assert tail.slow == tuple(range(LATE, LATE + 20))
    assert cause.share == pytest.approx(1.0, abs=0.01)
    assert shares(tail) == pytest.approx(1.0)
    assert tail.excess_ms == pytest.approx(sum(200 - 10 * n for n in range(20)))


@pytest.mark.parametrize(
    "harmless",
    [
        None,
        stall("gc", 1.8105, 0.009, **ELSEWHERE, data={"generation": 2}),
        stall("cpu", request=90, thread="worker-1"),
    ],
)
def test_a_long_service_that_no_stall_delays_is_unexplained(
    harmless: Stall | None,
) -> None:
    tail = warm(explain(LATE_REQUESTS, [harmless] if harmless else [], 0))
    assert tail.causes == () and tail.slow[0] == LATE
    assert tail.unexplained_share == pytest.approx(1.0)


# -- other schedules -------------------------------------------------------------------

CROWD = sorted([0.5 * n for n in range(50)] + [10.0 + 0.001 * n for n in range(1, 12)])
LONGER_CALL = [1 if number % 10 == 0 else 0 for number in range(100)]
TWO_LATE = served(extra={LATE: 0.200, 45: 0.100})
QUICK = served(services=[0.0001 if n % 3 else SERVICE_S for n in range(100)])
BATCHES = Requests(
    arrival_s=(0.0, 0.001, 0.1, 0.101, 0.2, 0.201, 0.3, 0.301, 0.4, 0.401),
    begin_s=(0.01, 0.01, 0.11, 0.11, 0.21, 0.21, 0.31, 0.31, 0.41, 0.41),
    end_s=(0.02, 0.02, 0.12, 0.12, 0.28, 0.28, 0.32, 0.32, 0.42, 0.42),
    call=(0,) * 10,
    worker=(0,) * 10,
    batch=(2,) * 10,
)
GENERATED = {"file": "/tmp/torchproof-a1b2/inductor/4d/c4dq.py", "line": 7}
OF_A_LIBRARY = {"file": "/env/lib/python3.11/site-packages/bert/model.py", "line": 7}

SCHEDULES: dict[str, tuple[Requests, list[Stall], int]] = {
    "a steady schedule": (served(), [stall("gc", 0.5, 0.0006, request=25)], 0),
    "waiting behind usual services": (served(CROWD), [], 0),
    "a call that always takes longer": (
        served(services=[0.018 if c else 0.01 for c in LONGER_CALL], call=LONGER_CALL),
        [],
        0,
    ),
    "a size, and a collection in another thread": (
        LATE_REQUESTS,
        [recompile(BEGIN, 0.1, LATE), stall("gc", BEGIN + 0.1, 0.1, **ELSEWHERE)],
        0,
    ),
    "a collection while the request also waited for a CPU": (
        LATE_REQUESTS,
        [stall("gc", BEGIN + 0.06, 0.1), stall("cpu", BEGIN + 0.05, 0.15)],
        0,
    ),
    "a collection in a library": (LATE_REQUESTS, [stall("gc", **OF_A_LIBRARY)], 0),
    "a collection in compiled code": (LATE_REQUESTS, [stall("gc", **GENERATED)], 0),
    "a collection stops two workers": (
        served([0.010 * n for n in range(200)], {100: 0.150, 101: 0.140}, workers=2),
        [stall("gc", 1.0, 0.15, request=100, data={"generation": 2})],
        0,
    ),
    "stalls inside another": (
        LATE_REQUESTS,
        [
            recompile(BEGIN, 0.2, LATE),
            stall("inductor", BEGIN + 0.05, 0.1),
            stall("triton", BEGIN + 0.06, 0.04),
        ],
        0,
    ),
    "a stall inside another in every request": (
        served(services=[0.015] * 100),
        [
            stall(kind, at + begin, seconds, request=number)
            for number, at in enumerate(EVERY_20_MS)
            for kind, begin, seconds in (
                ("compile", 0.0, 0.008),
                ("triton", 0.001, 0.006),
            )
        ],
        0,
    ),
    "a second cause in the backlog of the first": (
        TWO_LATE,
        [
            recompile(BEGIN, 0.2, LATE),
            stall("gc", TWO_LATE.begin_s[45] or 0.0, 0.1, request=45),
        ],
        0,
    ),
    "a batch": (BATCHES, [recompile(0.212, 0.06, 4)], 0),
    "the cold phase is explained apart": (
        served(extra={0: 0.5, 90: 0.05}),
        [stall("compile", 0.0, 0.5, request=0), recompile(1.8, 0.05, 90)],
        60,
    ),
    "a rejected request": (
        Requests((0.0, 0.1, 0.2), (0.0, None, 0.2), (0.01, None, 0.21), (0, 0, 0)),
        [],
        0,
    ),
    "a request that fails is a culprit": (
        replace(LATE_REQUESTS, failed=(LATE,)),
        [recompile(BEGIN, 0.2, LATE)],
        0,
    ),
    "quick answers": (QUICK, [], 0),
    "quick errors": (
        replace(QUICK, failed=tuple(n for n in range(100) if n % 3)),
        [],
        0,
    ),
    "errors alone": (replace(QUICK, failed=tuple(range(100))), [], 0),
}


def numbers(found: Iterable[int]) -> str:
    """`4, 40-59`: the numbers of requests."""
    parts: list[list[int]] = []
    for number in found:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, sorted({p[0], p[-1]}))) for p in parts) or "none"


def described(phase: str, tail: Tail | None) -> list[str]:
    if tail is None:
        return []
    lines = [f"{phase}: slow {numbers(tail.slow)}"]
    if tail.slow:
        assert shares(tail) == pytest.approx(1.0)
        lines[0] += f"; load {tail.load_share:.3f}"
        lines[0] += f", unexplained {tail.unexplained_share:.3f}"
    for cause in tail.causes:
        culprits, victims = numbers(cause.culprits), numbers(cause.victims)
        lines += [
            f"  {cause.code} {cause.share:.3f}: stalls {numbers(cause.stalls)},"
            f" culprits {culprits}, victims {victims}",
            f"    {cause.text}",
            f"    {cause.remedy}",
        ]
    return lines


def test_tails_are_as_they_were(snapshot: Callable[[str, str], None]) -> None:
    lines = []
    for name, (requests, stalls, first_warm) in SCHEDULES.items():
        cold, later = explain(requests, stalls, first_warm)
        found = [*described("cold", cold), *described("warm", later)]
        lines.append("\n    ".join([name, *found]))
    snapshot("tails.txt", "\n".join(lines) + "\n")


def test_kinds_of_stalls_that_nothing_saw_are_named() -> None:
    blind = explain(QUICK, [], 0, {"cpu": "no statistics"})
    assert warm(blind).missing == {"cpu": "no statistics"}


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
    stalls = [recompile(requests.begin_s[n] or 0.0, s, n) for n, s in extra.items()]
    at = draw.uniform(0, now)
    for thread in ("metrics", "other"):
        elsewhere = {"request": None, "thread": thread}
        stalls.append(stall("gc", at, 0.1, **elsewhere, data={"generation": 2}))
        at += 0.05
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
