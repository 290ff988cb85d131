"""Latencies in production, and compiled code that has become slower than eager was."""

from __future__ import annotations

import functools
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor
from twins import Net, compiled, sample

import torchproof
from torchproof.runtime.monitor import Monitor, percentile
from torchproof.runtime.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Clock:
    """Time that passes only where a call says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def run_for(clock: Clock, ms: float) -> None:
    clock.now_s += ms / 1e3


def monitored(clock: Clock) -> tuple[Any, Monitor, list[Mapping[str, Any]]]:
    """A callable whose argument is how many ms it takes, and what was said of it."""
    told: list[Mapping[str, Any]] = []
    telemetry = Telemetry("Net", lambda kind, record: told.append({kind: record}))
    monitor = Monitor(telemetry)
    runs = monitor.timing(functools.partial(run_for, clock), "compiled").each_call()

    def call(ms: float) -> None:
        next(runs)(ms)
        telemetry.deliver()  # as a compiled model does

    return call, monitor, told


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert percentile([3.0], 99) == 3.0
    assert percentile([2.0, 1.0], 0) == 1.0


def test_latencies_are_kept_apart_and_forgotten(clock: Clock) -> None:
    run, monitor, _ = monitored(clock)
    for ms in (1.0, 2.0, 3.0):
        run(ms)
    latency = monitor.latency()
    assert list(latency) == ["compiled"] and latency["compiled"].calls == 3
    assert latency["compiled"].p50_ms == pytest.approx(2.0)
    assert latency["compiled"].p99_ms == pytest.approx(3.0)
    for _ in range(3000):
        run(5.0)
    assert monitor.latency()["compiled"].calls == 1000
    assert monitor.latency()["compiled"].p50_ms == pytest.approx(5.0)


def test_drift_is_said_once_until_it_is_over(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    run, monitor, told = monitored(clock)
    monitor.eager_ms = 10.0
    with caplog.at_level(logging.WARNING, logger="torchproof"):
        for _ in range(500):
            run(5.0)
        assert not told and not monitor.drifted  # twice as fast as eager was
        for _ in range(500):
            run(12.0)
        assert [list(record) for record in told] == [["drift"]] and monitor.drifted
        assert told[0]["drift"]["compiled_ms"] == pytest.approx(12.0)
        assert told[0]["drift"]["eager_ms"] == pytest.approx(10.0)
        for _ in range(500):
            run(5.0)
        assert len(told) == 1 and not monitor.drifted
        for _ in range(500):
            run(12.0)
    assert len(told) == 2
    lines = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(lines) == 2
    assert all(re.match(r"Net: .*\b12 ms\b.*\b10 ms\b", line) for line in lines)


def test_later_calls_are_timed_at_random() -> None:
    """One call of four, and each step of a model that repeats its steps alike."""
    run = Monitor(Telemetry("Net", None)).timing(print, "compiled")
    ran = list(itertools.islice(run.each_call(), 1000 + 40_000))
    assert print not in ran[:1000]
    timed = [number for number, each in enumerate(ran[1000:]) if each is not print]
    assert len(timed) == 40_000 // 4
    for period in (2, 3, 4, 5, 8, 12, 16, 100):
        steps = Counter(number % period for number in timed)
        usual = len(timed) / period
        assert set(steps) == set(range(period))
        assert all(0.5 * usual < count < 1.5 * usual for count in steps.values())


def test_a_slow_step_shows_in_the_percentiles_of_later_calls(clock: Clock) -> None:
    run, monitor, _ = monitored(clock)
    for _ in range(2000):
        for ms in (1.0, 1.0, 1.0, 9.0):  # every fourth, which is the rate of timing
            run(ms)
    latency = monitor.latency()["compiled"]
    assert latency.calls == 1000
    assert latency.p50_ms == pytest.approx(1.0)
    assert latency.p95_ms == pytest.approx(9.0)


def test_the_median_of_eager_calls_follows_new_ones(clock: Clock) -> None:
    run, monitor, told = monitored(clock)
    eager = monitor.timing(lambda ms: run_for(clock, ms), "eager")
    for _ in range(60):
        eager(10.0)
    for _ in range(200):
        run(12.0)
    assert monitor.drifted and told[0]["drift"]["eager_ms"] == pytest.approx(10.0)
    for _ in range(200):
        eager(20.0)
    for _ in range(200):
        run(12.0)
    assert not monitor.drifted and len(told) == 1


def test_drift_needs_eager_times_to_compare_with(clock: Clock) -> None:
    run, monitor, told = monitored(clock)
    for _ in range(1000):
        run(50.0)
    assert not told and not monitor.drifted
    assert "eager" not in monitor.latency()


def test_a_slow_down_that_is_planted_in_a_model_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Compiled code that sleeps, from some call on, against eager code that does not.

    What it sleeps is far beyond what a busy machine adds to so small a call.
    """
    told: list[str] = []
    delay = {"s": 0.0}

    def sleeping(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            time.sleep(delay["s"])
            return gm.forward(*args)

        return run

    def double(x: Tensor) -> Tensor:
        return x * 2

    function = compiled(
        double,
        backend=sleeping,
        monitor=True,
        on_event=lambda kind, record: told.append(kind),
    )
    function.monitor.eager_ms = 5.0
    for _ in range(100):
        function(sample())
    delay["s"] = 0.008
    for _ in range(120):
        function(sample())
    assert told == ["compilation", "drift"]
    latency = torchproof.status(function).latency
    assert latency["compiled"].p95_ms >= 8.0
    assert "compiled: 219 calls, p50" in str(torchproof.status(function))


def test_only_who_asks_is_timed() -> None:
    model = compiled(Net().eval())
    model(sample())
    assert torchproof.status(model).latency == {}
    # Of another class: it would use the code of the first model.
    timed = compiled(type("Twin", (Net,), {})().eval(), monitor=True)
    for _ in range(3):
        timed(sample())
    # The call that compiled is none that says how fast the code is.
    assert torchproof.status(timed).latency["compiled"].calls == 2
