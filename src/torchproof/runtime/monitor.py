"""Measures latency in production, and reports when compiled calls become slow.

Times are host times: on CUDA a call may return before its kernels end. That holds for
compiled and for eager calls alike.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from torchproof.runtime.status_report import Latency
from torchproof.runtime.telemetry import Telemetry

_KEPT = 1000  # times of each kind
_FEWEST = 50  # times of each kind that a comparison needs
_SLOWER = 1.05  # ratio to eager's median
_LOOK_EVERY = 100  # calls


class Monitor:
    """Keeps the latest times of compiled and of eager calls."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._times_ms: dict[str, deque[float]] = {
            "eager": deque(maxlen=_KEPT),
            "compiled": deque(maxlen=_KEPT),
        }
        self.eager_ms: float | None = None  # from a speed trial, if there was one
        self._calls = 0
        self.drifted = False

    def timing(self, run: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter
        telemetry = self._telemetry

        def timed(*args: Any, **kwargs: Any) -> Any:
            compilations = len(telemetry.compilations) + len(telemetry.fallbacks)
            started = clock()
            answer = run(*args, **kwargs)
            ms = (clock() - started) * 1e3
            if compilations == len(telemetry.compilations) + len(telemetry.fallbacks):
                self._note("eager" if telemetry.was_eager else "compiled", ms)
            return answer

        return timed

    def _note(self, what: str, ms: float) -> None:
        self._times_ms[what].append(ms)
        self._calls += 1
        if self._calls % _LOOK_EVERY == 0:
            self._look_for_drift()

    def _look_for_drift(self) -> None:
        """Reports once per drift that the latest compiled calls are slower than eager.

        Older calls would hide a recent change.
        """
        eager, compiled = (list(self._times_ms[key]) for key in ("eager", "compiled"))
        was = percentile(eager, 50) if len(eager) >= _FEWEST else self.eager_ms
        if was is None or len(compiled) < _FEWEST:
            return
        now = percentile(compiled[-_LOOK_EVERY:], 50)
        slower = now > was * _SLOWER
        if slower and not self.drifted:
            self._telemetry.log(
                logging.WARNING,
                f"compiled calls take {now:.3g} ms, eager took {was:.3g} ms",
            )
            self._telemetry.emit("drift", {"compiled_ms": now, "eager_ms": was})
        self.drifted = slower

    def latency(self) -> dict[str, Latency]:
        return {
            name: Latency(len(times), *(percentile(times, p) for p in (50, 95, 99)))
            for name, times in ((n, list(t)) for n, t in self._times_ms.items())
            if times
        }


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
