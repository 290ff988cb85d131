"""The requests of a test in shared memory, written by the process that answers them.

The parent reads the file while the test runs and after it. So neither an interrupt nor
a crash of the process loses a request, and showing progress costs the process nothing.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import Requests

WAITING, SERVED, ANSWERED, FAILED, REJECTED = range(5)
_FIELDS = [
    ("begin", "f8"),
    ("end", "f8"),
    ("late", "f8"),  # of an idle worker that waited for the arrival
    ("first_token", "f8"),
    ("tokens", "i8"),
    ("worker", "i4"),
    ("batch", "i4"),
    ("state", "i4"),
]


class RequestLog:
    """One row per request, and a flag with which the parent stops the test.

    Fields are arrays: `log.begin[number] = 0.25`. Times count from the timetable's
    start; they are meaningful from the state on that sets them.
    """

    def __init__(self, path: Path, count: int, *, create: bool = False) -> None:
        self.path = path
        mode: Any = "w+" if create else "r+"
        rows: Any = np.memmap(path, dtype=_FIELDS, mode=mode, shape=(count + 1,))
        # The last row is about the test as a whole.
        self._flag, self._origin = rows["state"][count:], rows["begin"][count:]
        self._stopped = rows["end"][count:]
        rows = rows[:count]
        self.begin, self.end, self.late = rows["begin"], rows["end"], rows["late"]
        self.first_token, self.tokens = rows["first_token"], rows["tokens"]
        self.worker, self.batch = rows["worker"], rows["batch"]
        self.state = rows["state"]
        if create:
            for times in (self.begin, self.end, self.late, self.first_token):
                times[:] = math.nan
            self._origin[:] = self._stopped[:] = math.nan
            self.tokens[:] = -1

    def stop(self) -> None:
        """Asks the process to take no further request."""
        if not self.is_stopped:
            self._stopped[0] = self.elapsed_s or 0.0
            self._flag[0] = 1

    @property
    def is_stopped(self) -> bool:
        return bool(self._flag[0])

    def begin_at(self, origin: float) -> None:
        """Notes the start of the timetable on `time.perf_counter`.

        On Linux all processes share that clock.
        """
        self._origin[0] = origin

    @property
    def origin(self) -> float:
        return float(self._origin[0])

    @property
    def elapsed_s(self) -> float | None:
        """The time since the timetable began; None if it did not."""
        origin = self.origin
        return None if math.isnan(origin) else time.perf_counter() - origin

    @property
    def stopped_s(self) -> float | None:
        """When the parent stopped the test; None if it did not."""
        return float(self._stopped[0]) if self.is_stopped else None

    @property
    def finished(self) -> int:
        """How many requests have ended, in whatever way."""
        return int((np.asarray(self.state) >= ANSWERED).sum())

    def requests(self, timetable: Timetable) -> Requests:
        """The record; a request without an end was not served.

        The timetable may have fewer requests than the log, if the test ended early.
        """
        count = len(timetable)
        state = np.array(self.state[:count])
        ended = (state == ANSWERED) | (state == FAILED)
        tokens, first_token = self.tokens[:count], self.first_token[:count]
        has_tokens = bool((tokens >= 0).any())
        return Requests(
            arrival_s=timetable.arrival_s,
            begin_s=_values(self.begin[:count], ended),
            end_s=_values(self.end[:count], ended),
            call=timetable.call,
            worker=_values(self.worker[:count], ended),
            batch=_values(self.batch[:count], ended),
            failed=tuple(np.flatnonzero(state == FAILED).tolist()),
            rejected=tuple(np.flatnonzero(state == REJECTED).tolist()),
            first_token_s=_values(first_token, ended) if has_tokens else (),
            prompt_tokens=timetable.prompt_tokens,
            output_tokens=_values(tokens, ended) if has_tokens else (),
        )

    def slower_than(self, limit_s: float, arrival_s: Any) -> int:
        """How many requests took or wait longer by now; `arrival_s` is an array."""
        now = self.elapsed_s
        if now is None:
            return 0
        state = np.array(self.state)
        ends = np.where(state == ANSWERED, self.end, now)
        over = (ends - arrival_s > limit_s) | (state == FAILED) | (state == REJECTED)
        return int(over.sum())

    def lateness_ms(self) -> Any:
        """How late idle workers took the requests that they had waited for."""
        late = np.array(self.late)
        return late[~np.isnan(late)] * 1e3


def _values(values: Any, ended: Any) -> tuple[Any, ...]:
    """The value of each request that has ended and has one, else None."""
    known = ended & ~np.isnan(values)
    pairs = zip(values.tolist(), known.tolist(), strict=True)
    return tuple(value if is_known else None for value, is_known in pairs)
