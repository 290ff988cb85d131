"""The requests of a test in shared memory, written by the process that answers them.

The parent writes the timetable into the file, and reads it while the test runs and
after it. So neither an interrupt nor a crash of the process loses a request, and
showing progress costs the process nothing.
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
_FIELDS: Any = [
    ("arrival", "f8"),
    ("call", "i4"),
    ("prompt_tokens", "i8"),  # of text models only, as are the tokens to be made
    ("asked_tokens", "i8"),
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

    def __init__(self, path: Path, timetable: Timetable | None = None) -> None:
        """Opens a log, or creates that of a timetable."""
        self.path = path
        if timetable is not None:
            np.zeros(len(timetable) + 1, _FIELDS).tofile(path)
        rows: Any = np.memmap(path, dtype=_FIELDS, mode="r+")
        # The last row is about the test as a whole.
        rows, test = rows[:-1], rows[-1:]
        self._flag, self._origin, self._stopped = (
            test[name] for name in ("state", "begin", "end")
        )
        self.begin, self.end, self.late = rows["begin"], rows["end"], rows["late"]
        self.first_token, self.tokens = rows["first_token"], rows["tokens"]
        self.worker, self.batch = rows["worker"], rows["batch"]
        self.state, self._arrival = rows["state"], rows["arrival"]
        if timetable is None:
            is_text = bool(rows["asked_tokens"].any())
            self.timetable = Timetable(
                tuple(rows["arrival"].tolist()),
                tuple(rows["call"].tolist()),
                length_s=float(test["arrival"][0]),
                prompt_tokens=tuple(rows["prompt_tokens"].tolist()) if is_text else (),
                output_tokens=tuple(rows["asked_tokens"].tolist()) if is_text else (),
            )
            return
        self.timetable = timetable
        rows["arrival"], rows["call"] = timetable.arrival_s, timetable.call
        test["arrival"] = timetable.length_s
        if timetable.output_tokens:
            rows["prompt_tokens"] = timetable.prompt_tokens
            rows["asked_tokens"] = timetable.output_tokens
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

    def forget_later(self) -> None:
        """Forgets the requests that had not arrived when the test was stopped."""
        if self.is_stopped:
            self.timetable = self.timetable.until(float(self._stopped[0]))

    def requests(self) -> Requests:
        """The record; a request without an end was not served."""
        timetable, count = self.timetable, len(self.timetable)
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

    def slower_than(self, limit_s: float) -> int:
        """How many requests took or wait longer by now."""
        now = self.elapsed_s
        if now is None:
            return 0
        state = np.array(self.state)
        ends = np.where(state == ANSWERED, self.end, now)
        is_late = ends - np.array(self._arrival) > limit_s
        return int((is_late | (state == FAILED) | (state == REJECTED)).sum())

    def lateness_ms(self) -> Any:
        """How late idle workers took the requests that they had waited for."""
        late = np.array(self.late)
        return late[~np.isnan(late)] * 1e3


def _values(values: Any, ended: Any) -> tuple[Any, ...]:
    """The value of each request that has ended and has one, else None."""
    known = ended & ~np.isnan(values)
    pairs = zip(values.tolist(), known.tolist(), strict=True)
    return tuple(value if is_known else None for value, is_known in pairs)
