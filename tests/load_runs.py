"""Load tests made by hand: a simulated queue with stalls that are planted in it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import bench_runs

from torchproof.records import Run
from torchproof.records.load_test import (
    ColdPhase,
    Generation,
    LatencyObjective,
    LoadResult,
    LoadTest,
    Percentile,
    RateTrial,
    Requests,
    Stall,
    Tail,
    TailCause,
)
from torchproof.records.run import Finding

RATE, COUNT = 50.0, 1500
OBJECTIVE = LatencyObjective(percent=99, limit_ms=50)
RECOMPILED, COLLECTED = 700, 1100  # the requests in which `full` stalls
PERCENTS = (50.0, 90.0, 99.0, 99.9)
NEEDED = {50.0: 7, 90.0: 44, 99.0: 459, 99.9: 4603}
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
    arrival: Sequence[float], service: Sequence[float], *, end_s: float = math.inf
) -> Requests:
    """One worker that takes requests in order, until the test ends."""
    begin: list[float | None] = []
    end: list[float | None] = []
    free = 0.0
    for due, seconds in zip(arrival, service, strict=True):
        start = max(due, free)
        is_served = start < end_s
        begin.append(round(start, 6) if is_served else None)
        end.append(round(start + seconds, 6) if is_served else None)
        free = start + seconds
    count = len(arrival)
    return Requests(
        arrival_s=tuple(arrival),
        begin_s=tuple(begin),
        end_s=tuple(end),
        call=tuple(number % 3 for number in range(count)),
        worker=tuple(None if at is None else 0 for at in begin),
        batch=tuple(None if at is None else 1 for at in begin),
    )


def services(
    count: int, middle_s: float, planted: Mapping[int, float] | None = None
) -> list[float]:
    """Service times around a middle; `planted` adds seconds to some requests."""
    draw = random.Random(1)
    times = [middle_s * draw.lognormvariate(0, 0.12) for _ in range(count)]
    for number, seconds in (planted or {}).items():
        times[number] += seconds
    return times


def spans(requests: Requests, first: int = 0) -> dict[str, list[float]]:
    """Latency, queueing and service in ms; infinite for what was never served."""
    kinds: dict[str, list[float]] = {"latency": [], "queueing": [], "service": []}
    rows = zip(requests.arrival_s, requests.begin_s, requests.end_s, strict=True)
    for due, begin, end in list(rows)[first:]:
        if begin is None or end is None:
            kinds["latency"].append(math.inf)
            continue
        kinds["latency"].append((end - due) * 1e3)
        kinds["queueing"].append((begin - due) * 1e3)
        kinds["service"].append((end - begin) * 1e3)
    return kinds


def percentiles(values: Sequence[float]) -> tuple[Percentile, ...]:
    """Order statistics with an interval of 2.6 standard deviations of their rank."""
    ordered, count = sorted(values), len(values)
    rows = []
    for percent in PERCENTS:
        part = percent / 100
        spread = 2.6 * math.sqrt(count * part * (1 - part))
        ranks = [part * count - spread, part * count, part * count + spread]
        at = [ordered[min(count - 1, max(0, round(rank)))] for rank in ranks]
        if count < NEEDED[percent] or math.isinf(at[1]):
            needed = NEEDED[percent] if count < NEEDED[percent] else None
            rows.append(Percentile(percent, needed=needed))
            continue
        high = None if math.isinf(at[2]) else at[2]
        rows.append(Percentile(percent, at[1], low_ms=at[0], high_ms=high))
    return tuple(rows)


def result(strategy: str, requests: Requests, first: int, **more: Any) -> LoadResult:
    """The numbers of a strategy whose cold phase ends before request `first`."""
    warm, count = spans(requests, first), len(requests.arrival_s)
    answered = sum(end is not None for end in requests.end_s)
    within = sum(ms <= OBJECTIVE.limit_ms for ms in warm["latency"])
    lasted = requests.arrival_s[-1]
    plain: dict[str, Any] = {
        "latency": percentiles(warm["latency"]),
        "queueing": percentiles(warm["queueing"]),
        "service": percentiles(warm["service"]),
        "all_latency": percentiles(spans(requests)["latency"]),
        "answered": answered,
        "failed": 0,
        "rejected": 0,
        "unserved": count - answered,
        "offered_rate": count / lasted,
        "answered_rate": answered / lasted,
        "goodput_rate": within / (lasted - requests.arrival_s[first]),
        "kept_up": answered == count,
        "late_ms": 0.12,
    }
    return LoadResult(strategy, requests, **{**plain, **more})


# -- three strategies -----------------------------------------------------------------


def recompiling() -> LoadResult:
    """`full`: compiles at first, again at request 700; a collection at 1100."""
    planted = {0: 6.2, RECOMPILED: 1.4, COLLECTED: 0.4}
    requests = queued(arrivals(COUNT), services(COUNT, 0.005, planted))
    begins = enumerate(zip(requests.arrival_s, requests.begin_s, strict=True))
    first = next(number for number, (due, at) in begins if number and at == due)
    latency = spans(requests)["latency"]
    slow = [n for n in range(first, COUNT) if latency[n] > 20]
    stalls = (
        _stall("compile", 0, requests, 6.2, "first compile of Model.forward"),
        _stall("inductor", 0, requests, 4.0, "Inductor"),
        _stall("compile", RECOMPILED, requests, 1.4, "recompile of Model.forward"),
        _stall("inductor", RECOMPILED, requests, 0.9, "Inductor"),
        _stall("gc", COLLECTED, requests, 0.4, "garbage collection, generation 2"),
    )
    excess = {n: latency[n] - 5.3 for n in slow}
    behind = [n for n in slow if RECOMPILED <= n < COLLECTED]
    causes = (
        _cause("LT101", "compile", behind, excess, stalls=(2,)),
        _cause("LT103", "gc", [n for n in slow if n >= COLLECTED], excess, stalls=(4,)),
    )
    total, explained = sum(excess.values()), sum(c.excess_ms or 0 for c in causes)
    tail = Tail(
        threshold_ms=20.0,
        slow=tuple(slow),
        excess_ms=total,
        causes=causes,
        load_ms=(total - explained) * 0.6,
        load_share=(total - explained) * 0.6 / total,
        unexplained_ms=(total - explained) * 0.4,
        unexplained_share=(total - explained) * 0.4 / total,
        missing={"triton": "torch 2.13 without a GPU compiles no Triton kernels"},
    )
    cold = ColdPhase(
        end_s=requests.arrival_s[first],
        requests=first,
        missed=sum(ms > OBJECTIVE.limit_ms for ms in latency[:first]),
        first_answer_s=6.23,
        start_s=3.4,
        tail=_cold_tail(latency[:first]),
    )
    return result(
        "full", requests, first, verdict="missed", stalls=stalls, tail=tail, cold=cold
    )


def _cold_tail(latency: Sequence[float]) -> Tail:
    slow = [n for n, ms in enumerate(latency) if ms > 20]
    excess = {n: latency[n] - 5.3 for n in slow}
    cause = _cause("LT102", "compile", slow, excess, stalls=(0,))
    return Tail(
        threshold_ms=20.0,
        slow=tuple(slow),
        excess_ms=sum(excess.values()),
        causes=(cause,),
        load_ms=0.0,
        load_share=0.0,
        unexplained_ms=0.0,
        unexplained_share=0.0,
    )


def _stall(
    kind: Any, request: int, requests: Requests, seconds: float, text: str
) -> Stall:
    begin = (requests.begin_s[request] or 0.0) + 0.001
    place = PLACE if kind == "compile" else {}
    return Stall(
        kind, begin, begin + seconds, text, request, thread="worker 0", **place
    )


def _cause(
    code: str, kind: Any, slow: Sequence[int], excess: Mapping[int, float], **more: Any
) -> TailCause:
    texts = {
        "LT101": ("recompile of Model.forward: size mismatch at index 1 of x", REMEDY),
        "LT102": ("first compile of Model.forward", "answer one call before serving"),
        "LT103": ("garbage collection, generation 2", "`gc.freeze()` after warm-up"),
    }
    text, remedy = texts[code]
    mine = sum(excess[n] for n in slow)
    return TailCause(
        code,
        kind,
        text,
        remedy,
        culprits=tuple(slow[:1]),
        victims=tuple(slow[1:]),
        excess_ms=mine,
        share=mine / sum(excess.values()),
        **more,
    )


def overloaded() -> LoadResult:
    """`eager`: 26 ms a request at 50 a second, so that the queue grows."""
    times = arrivals(COUNT)
    requests = queued(times, services(COUNT, 0.026), end_s=times[-1] + 2)
    first = 1
    latency = spans(requests)["latency"]
    slow = [n for n in range(first, COUNT) if 100 < latency[n] < math.inf]
    excess = sum(latency[n] for n in slow)
    tail = Tail(
        threshold_ms=100.0,
        slow=tuple(slow),
        excess_ms=excess,
        load_ms=excess * 0.97,
        load_share=0.97,
        unexplained_ms=excess * 0.03,
        unexplained_share=0.03,
    )
    cold = ColdPhase(
        requests=COUNT, missed=COUNT - 40, first_answer_s=0.05, start_s=1.2
    )
    return result("eager", requests, first, verdict="missed", tail=tail, cold=cold)


def interrupted() -> LoadResult:
    """`compile:nowait`, which Ctrl-C ended after 120 requests."""
    requests = queued(arrivals(120), services(120, 0.006))
    cold = ColdPhase(
        end_s=0.1,
        requests=3,
        missed=0,
        objective_met_s=0.0,
        first_answer_s=0.04,
        start_s=2.1,
    )
    return result(
        "compile:nowait",
        requests,
        3,
        verdict="undecided",
        needed=459,
        tail=Tail(threshold_ms=20.0, slow=(), excess_ms=0.0),
        cold=cold,
        ending="interrupted",
    )


def clean(strategy: str = "full", *, middle_s: float = 0.004) -> LoadResult:
    """A strategy without a slow request."""
    requests = queued(arrivals(COUNT), services(COUNT, middle_s))
    cold = ColdPhase(
        end_s=0.1,
        requests=3,
        missed=0,
        objective_met_s=0.0,
        first_answer_s=0.03,
        start_s=1.0,
    )
    tail = Tail(threshold_ms=30.0, slow=(), excess_ms=0.0)
    return result(strategy, requests, 3, verdict="met", tail=tail, cold=cold)


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
        watts=214.0,
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
    return Run(**{**plain, **more})
