"""A server in virtual time: a load test of minutes takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.results import result_of
from torchproof.measure.loadtest.serving import serve
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import LatencyObjective, LoadResult, Requests

Service = Callable[[int, int], float]  # seconds, by call and size of the batch


def result(
    requests: Requests,
    timetable: Timetable,
    objective: LatencyObjective | None = None,
    *,
    cold: bool = True,
    lateness_ms: Any = (),
) -> LoadResult:
    options = LoadOptions(rate=1, objective=objective, cold=cold)
    length_s = timetable.length_s
    return result_of("full", requests, length_s, options, lateness_ms=lateness_ms)


class VirtualClock:
    """Time passes only by sleeping and serving; an idle worker may wake up late."""

    def __init__(self, wakes_late_s: float = 0.0) -> None:
        self.time = 100.0
        self._wakes_late_s = wakes_late_s

    def now(self) -> float:
        return self.time

    def sleep_until(self, moment: float) -> None:
        self.time = max(self.time, moment + self._wakes_late_s)


class VirtualServer:
    """One worker whose calls take the time that `service` says."""

    def __init__(
        self, folder: Path, service: Service, *, wakes_late_s: float = 0.0
    ) -> None:
        self._folder = folder
        self._service = service
        self._wakes_late_s = wakes_late_s
        self._tests = 0
        self.log: RequestLog | None = None

    def serve(self, timetable: Timetable, **options: Any) -> Requests:
        clock = VirtualClock(self._wakes_late_s)

        def answer(numbers: Sequence[int]) -> None:
            clock.time += self._service(timetable.call[numbers[0]], len(numbers))

        self._tests += 1
        path = self._folder / f"log-{self._tests}"
        self.log = RequestLog(path, timetable)
        serve(answer, self.log, clock=clock, **options)
        return self.log.requests()
