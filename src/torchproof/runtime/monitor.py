"""Measures latency in production, and reports when compiled calls become slow.

Times are host times: on CUDA a call may return before its kernels end. That holds for
compiled and for eager calls alike.
"""

from __future__ import annotations

import itertools
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
        self._times_s: dict[str, deque[float]] = {
            "eager": deque(maxlen=_KEPT),
            "compiled": deque(maxlen=_KEPT),
        }
        self.eager_ms: float | None = None  # from a speed trial, if there was one
        self._calls = itertools.count(1)
        self.drifted = False

    def timing(self, run: Callable[..., Any], usual: str) -> Callable[..., Any]:
        """Times the calls of `run`, which are `usual` ones, "compiled" or "eager".

        Every call pays for what the closure does, so it does little: the times of calls
        in which something happened are sorted out afterwards.
        """
        clock = time.perf_counter
        telemetry = self._telemetry
        keep = self._times_s[usual].append
        calls = self._calls

        def timed(*args: Any, **kwargs: Any) -> Any:
            before = telemetry.changes
            started = clock()
            answer = run(*args, **kwargs) if kwargs else run(*args)
            seconds = clock() - started
            if telemetry.changes == before:
                keep(seconds)
            else:
                self._keep_unless_compiling(seconds, before)
            if not next(calls) % _LOOK_EVERY:
                self._look_for_drift()
            return answer

        return timed

    def _keep_unless_compiling(self, seconds: float, before: int) -> None:
        """Keeps the time of a call, unless something was compiled or fell back."""
        if self._telemetry.last_compiling <= before:
            what = "eager" if self._telemetry.was_eager else "compiled"
            self._times_s[what].append(seconds)

    def _times_ms(self, what: str) -> list[float]:
        return [seconds * 1e3 for seconds in list(self._times_s[what])]

    def _look_for_drift(self) -> None:
        """Reports once per drift that the latest compiled calls are slower than eager.

        Older calls would hide a recent change.
        """
        eager, compiled = self._times_ms("eager"), self._times_ms("compiled")
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
            for name in self._times_s
            if (times := self._times_ms(name))
        }


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
