"""Measures latency in production, and reports when compiled calls become slow.

Times are host times: on CUDA a call may return before its kernels end. That holds for
compiled and for eager calls alike. The first 1,000 calls are timed, then one of every
four, chosen at random: timing a call takes longer than everything else that a compiled
model adds to it.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torchproof.runtime.status_report import Latency
from torchproof.runtime.telemetry import Telemetry

_MOST_TIMES = 1000  # times of each kind
_FEWEST = 50  # times of each kind that a comparison needs
_LATEST = 100  # compiled times that are compared with eager's
_SLOWER = 1.05  # ratio to eager's median
_LOOK_EVERY = 25  # times
_TIMED_FIRST = 1000  # calls
_ONE_OF = 4  # calls, later
_GROUPS = 1031  # of calls until the choice repeats; a prime, as no model's period is


class TimedRun:
    """What calls run, timed; `each_call` has what each of them runs."""

    def __init__(self, plain: Callable[..., Any], timed: Callable[..., Any]) -> None:
        self._plain = plain
        self._timed = timed

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._timed(*args, **kwargs)

    def each_call(self) -> Iterator[Callable[..., Any]]:
        """The timed or the plain callable, without end.

        An iterator decides that, so that a call which is not timed runs nothing more.
        """
        later = tuple(self._timed if timed else self._plain for timed in sample())
        first = itertools.repeat(self._timed, _TIMED_FIRST)
        return itertools.chain(first, itertools.cycle(later))


class Monitor:
    """Keeps the latest times of compiled and of eager calls."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._times_s: dict[str, deque[float]] = {
            "eager": deque(maxlen=_MOST_TIMES),
            "compiled": deque(maxlen=_MOST_TIMES),
        }
        self.eager_ms: float | None = None  # from a speed trial, if there was one
        self._eager_median: tuple[float | None, float] = (None, 0.0)  # up to which time
        self.drifted = False

    def timing(self, run: Callable[..., Any], usual: str) -> TimedRun:
        """Times calls of `run`, which are `usual` ones, "compiled" or "eager".

        Every call pays for what the closure does, so it does little: the times of calls
        in which something happened are sorted out afterwards.
        """
        clock = time.perf_counter
        telemetry = self._telemetry
        keep = self._times_s[usual].append
        timings = itertools.count(1)

        def timed(*args: Any, **kwargs: Any) -> Any:
            before = telemetry.changes
            started = clock()
            answer = run(*args, **kwargs) if kwargs else run(*args)
            seconds = clock() - started
            if telemetry.changes == before:
                keep(seconds)
            else:
                self._keep_unless_compiling(seconds, before)
            if not next(timings) % _LOOK_EVERY:
                self._look_for_drift()
            return answer

        return TimedRun(run, timed)

    def _keep_unless_compiling(self, seconds: float, before: int) -> None:
        """Keeps the time of a call, unless something was compiled or fell back."""
        if self._telemetry.last_compiling <= before:
            what = "eager" if self._telemetry.was_eager else "compiled"
            self._times_s[what].append(seconds)

    def _times_ms(self, what: str, latest: int = _MOST_TIMES) -> list[float]:
        times = list(self._times_s[what])
        return [seconds * 1e3 for seconds in times[-latest:]]

    def _look_for_drift(self) -> None:
        """Reports once per drift that the latest compiled calls are slower than eager.

        Older calls would hide a recent change.
        """
        if len(self._times_s["compiled"]) < _FEWEST:
            return
        was = self._usual_eager_ms()
        if was is None:
            return
        now = percentile(self._times_ms("compiled", _LATEST), 50)
        slower = now > was * _SLOWER
        if slower and not self.drifted:
            self._telemetry.log(
                logging.WARNING,
                f"compiled calls take {now:.3g} ms, eager took {was:.3g} ms",
            )
            self._telemetry.emit("drift", {"compiled_ms": now, "eager_ms": was})
        self.drifted = slower

    def _usual_eager_ms(self) -> float | None:
        """The median of eager calls, or what a speed trial measured."""
        times = self._times_s["eager"]
        if len(times) < _FEWEST:
            return self.eager_ms
        if self._eager_median[0] is not times[-1]:  # sorted again only after a new one
            self._eager_median = times[-1], percentile(self._times_ms("eager"), 50)
        return self._eager_median[1]

    def latency(self) -> dict[str, Latency]:
        return {
            name: Latency(len(times), *(percentile(times, p) for p in (50, 95, 99)))
            for name in self._times_s
            if (times := self._times_ms(name))
        }


@functools.cache
def sample() -> tuple[bool, ...]:
    """Which of the later calls are timed: one of each group, anywhere in the group.

    Every n-th call would be the same step of a model that repeats n steps.
    """
    places = random.Random(0)  # the program's own random numbers stay as they are
    chosen = [places.randrange(_ONE_OF) for _ in range(_GROUPS)]
    return tuple(place == each for each in chosen for place in range(_ONE_OF))


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
