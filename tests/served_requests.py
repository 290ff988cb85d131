"""Requests that a process answers under observation, with their stalls explained."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.stalls import serve_observed
from torchproof.measure.loadtest.tail import Tails, explain
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import Stall, TailCause

EVERY_S = 0.012
STALLED = 40  # the request in which a test stalls


class LoadRun:
    """The requests and stalls of one timetable, explained."""

    def __init__(
        self, folder: Path, answer: Callable[[int], None], count: int = 80
    ) -> None:
        table = Timetable(
            arrival_s=tuple(EVERY_S * number for number in range(count)),
            call=(0,) * count,
            length_s=EVERY_S * count,
        )
        log = RequestLog(folder / "log", table)
        reply = serve_observed(lambda numbers: answer(numbers[0]), log)
        assert not reply.errors
        self.stalls = reply.stalls or ()
        requests, self.missing = log.requests(), reply.missing
        self.tails: Tails = explain(requests, self.stalls, 0, reply.missing)

    @property
    def causes(self) -> dict[str, TailCause]:
        assert self.tails.warm is not None
        return {cause.code: cause for cause in self.tails.warm.causes}

    def of_kind(self, kind: str) -> list[Stall]:
        return [stall for stall in self.stalls if stall.kind == kind]


def work() -> None:
    time.sleep(0.002)
