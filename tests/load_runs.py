"""Load tests made by hand: a simulated queue with stalls."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import bench_runs

from torchproof.checking import rules
from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest.load_job import ServingReply
from torchproof.measure.loadtest.percentiles import percentiles
from torchproof.measure.loadtest.results import metric_ms, result_of
from torchproof.records import Run
from torchproof.records.load_test import (
    Generation,
    LatencyObjective,
    LoadResult,
    LoadTest,
    Percentile,
    RateTrial,
    Requests,
    Stall,
    Tail,
)
from torchproof.records.run import Finding

RATE, COUNT = 50.0, 1500
OBJECTIVE = LatencyObjective(percent=99, limit_ms=50)
RECOMPILED, COLLECTED = 700, 1100  # the requests in which `full` stalls
REMEDY = "mark size 1 of `x` dynamic, or pad to 576"
PLACE = {"file": "model.py", "line": 42, "function": "Model.forward"}


def arrivals(count: int, rate: float = RATE) -> list[float]:
    draw, now = random.Random(0), 0.0
    times = []
    for _ in range(count):
        now += draw.expovariate(rate)
        times.append(round(now, 6))
    return times


def queued(
    arrival: Sequence[float],
    service: Sequence[float],
    *,
    workers: int = 1,
    call: Sequence[int] | None = None,
    end_s: float = math.inf,
) -> Requests:
    """Workers that take requests in order, until the test ends."""
    free = [(0.0, worker) for worker in range(workers)]
    begin: list[float | None] = []
    end: list[float | None] = []
    who: list[int | None] = []
    for due, seconds in zip(arrival, service, strict=True):
        at, worker = heapq.heappop(free)
        start = max(due, at)
        is_served = start < end_s
        begin.append(round(start, 6) if is_served else None)
        end.append(round(start + seconds, 6) if is_served else None)
        who.append(worker if is_served else None)
        heapq.heappush(free, (start + seconds, worker))
    return Requests(
        arrival_s=tuple(arrival),
        begin_s=tuple(begin),
        end_s=tuple(end),
        call=tuple(call or (number % 3 for number in range(len(arrival)))),
        worker=tuple(who),
        batch=tuple(None if at is None else 1 for at in begin),
    )


def services(
    count: int,
    middle_s: float,
    stalls_s: Mapping[int, float] | None = None,
    *,
    seed: int = 1,
) -> list[float]:
    """Service times around a middle; `stalls_s` adds seconds to some requests."""
    draw = random.Random(seed)
    times = [middle_s * draw.lognormvariate(0, 0.12) for _ in range(count)]
    for number, seconds in (stalls_s or {}).items():
        times[number] += seconds
    return times


def result(
    strategy: str,
    requests: Requests,
    reply: ServingReply | None = None,
    **more: Any,
) -> LoadResult:
    """What a load test computes from requests, and what `more` adds."""
    length_s = requests.arrival_s[-1]
    options = LoadOptions(rate=RATE, objective=OBJECTIVE)
    made = result_of(strategy, requests, length_s, options, reply=reply)
    assert made.cold is not None
    cold = dataclasses.replace(made.cold, start_s=1.2)
    return dataclasses.replace(made, cold=cold, late_ms=0.12, on_time=True, **more)


# -- three strategies -----------------------------------------------------------------


@functools.cache
def recompiling() -> LoadResult:
    """`full`: compiles at first, again at request 700; a collection at 1100."""
    stalls_s = {0: 6.2, RECOMPILED: 1.4, COLLECTED: 0.4}
    requests = queued(arrivals(COUNT), services(COUNT, 0.005, stalls_s))
    recompile = "recompile of Model.forward: size 1 of x was 128, is 576"
    sizes = {"source": "x", "dim": 1, "expected": "128", "actual": "576"}
    named = {"compiled": "Model.forward", "changed": "size 1 of x was 128, is 576"}
    guard = {"cause": "size", **sizes, **named}
    data: dict[str, Any] = {"guard": guard, "generation": 2}
    stalls = (
        _stall("compile", 0, requests, 6.2, "first compilation of Model.forward"),
        _stall("inductor", 0, requests, 4.0, "Inductor"),
        _stall("compile", RECOMPILED, requests, 1.4, recompile, **data),
        _stall("inductor", RECOMPILED, requests, 0.9, "Inductor"),
        _stall(
            "gc", COLLECTED, requests, 0.4, "garbage collection, generation 2", **data
        ),
    )
    missing = {"triton": "torch 2.13 without a GPU compiles no Triton kernels"}
    return result("full", requests, ServingReply(stalls=stalls, missing=missing))


def _stall(
    kind: Any, request: int, requests: Requests, seconds: float, text: str, **data: Any
) -> Stall:
    begin = (requests.begin_s[request] or 0.0) + 0.001
    place: dict[str, Any] = PLACE if kind == "compile" else {}
    return Stall(
        kind, begin, begin + seconds, text, request, "worker 0", **place, data=data
    )


@functools.cache
def overloaded() -> LoadResult:
    """`eager`: 26 ms a request at 50 a second, so that the queue grows."""
    times = arrivals(COUNT)
    requests = queued(times, services(COUNT, 0.026), end_s=times[-1] + 2)
    latency = metric_ms(requests, "latency")
    tail = Tail(
        threshold_ms=100.0,
        slow=tuple(n for n, ms in enumerate(latency) if 100 < ms < math.inf),
        excess_ms=1e6,
        load_ms=0.97e6,
        load_share=0.97,
        unexplained_ms=0.03e6,
        unexplained_share=0.03,
    )
    return result("eager", requests, tail=tail)


@functools.cache
def interrupted() -> LoadResult:
    """`compile:nowait`, which Ctrl-C ended after 120 requests."""
    requests = queued(arrivals(120), services(120, 0.006))
    tail = Tail(threshold_ms=30.0, excess_ms=0.0)
    return result("compile:nowait", requests, tail=tail, ending="interrupted")


@functools.cache
def clean(strategy: str = "full", *, middle_s: float = 0.004) -> LoadResult:
    """A strategy without a slow request."""
    requests = queued(arrivals(COUNT), services(COUNT, middle_s))
    tail = Tail(threshold_ms=40.0, excess_ms=0.0)
    return result(strategy, requests, tail=tail)


@functools.cache
def searched() -> LoadResult:
    """A strategy with a search for the highest rate."""

    def trial(rate: float, ms: float, verdict: Any) -> RateTrial:
        p99 = Percentile(99.0, ms, low_ms=ms * 0.9, high_ms=ms * 1.2)
        return RateTrial(
            rate, 1000, verdict, p99, kept_up=rate < 200, seconds=1000 / rate
        )

    trials = (
        trial(50, 8.0, "met"),
        trial(100, 14.0, "met"),
        trial(200, 900.0, "missed"),
        trial(150, 41.0, "met"),
        trial(175, 88.0, "missed"),
        trial(160, 50.5, "undecided"),
    )
    return dataclasses.replace(clean(), trials=trials, highest_rate=150.0)


@functools.cache
def generating() -> LoadResult:
    """A text model that is served as prefill and decode."""
    base = clean("full")
    count = len(base.requests.arrival_s)
    requests = dataclasses.replace(
        base.requests,
        first_token_s=tuple(
            None if at is None else at + 0.002 for at in base.requests.begin_s
        ),
        prompt_tokens=(32,) * count,
        output_tokens=(16,) * count,
    )
    generation = Generation(
        first_token=percentiles([2.0 + n / 500 for n in range(COUNT)]),
        per_token=percentiles([0.8 + n / 9000 for n in range(COUNT)]),
        output_tokens=16 * count,
        prompt_tokens=32 * count,
        tokens_per_s=812.0,
        capacity_tokens_per_s=1640.0,
        cost_per_million=0.41,
        currency_per_hour=2.4,
    )
    return dataclasses.replace(
        base, requests=requests, generation=generation, rejected=4
    )


# -- runs -----------------------------------------------------------------------------


def load_test(results: Sequence[LoadResult], **more: Any) -> LoadTest:
    plain: dict[str, Any] = {
        "rate": RATE,
        "arrivals": "poisson",
        "seed": 0,
        "planned": COUNT,
        "duration_s": 30.0,
        "objective": OBJECTIVE,
        "calls": ("x: 8x128", "x: 8x256", "x: 8x576"),
        "weights": (1.0, 1.0, 1.0),
    }
    return LoadTest(**{**plain, **more}, results=tuple(results))


def finding(code: str = "LT101", **more: Any) -> Finding:
    plain: dict[str, Any] = {
        "kind": "recompile",
        "severity": "high",
        "message": "a recompile of Model.forward delayed 71 requests",
        "cause": "size mismatch at index 1 of x",
        "fix": REMEDY,
        **PLACE,
    }
    return Finding(code, **{**plain, **more})


def run(
    results: Sequence[LoadResult] | None = None,
    *,
    test: Mapping[str, Any] | None = None,
    **more: Any,
) -> Run:
    """A load test of three strategies: stalled, overloaded, and ended early."""
    every = (recompiling(), overloaded(), interrupted()) if results is None else results
    plain: dict[str, Any] = {
        "id": "20260102-0304-model",
        "target": "model.py:make",
        "strategy": "-",
        "environment": bench_runs.ENVIRONMENT,
        "counts": {},
        "findings": () if results is not None else (finding(),),
        "load_test": load_test(every, **(test or {})),
        "verb": "loadtest",
        "command": "torchproof loadtest model.py:make --rate 50 --slo p99=50ms",
        "started": "2026-01-02T03:04:05",
    }
    return rules.with_texts(Run(**{**plain, **more}))
