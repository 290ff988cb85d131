"""Answers the requests of a timetable in an open loop.

No thread generates requests: the timetable says what has arrived, and each worker takes
what is due. A worker that is idle waits for the next arrival; a request that finds no
idle worker waits in the queue, and its latency counts from its arrival. So a stall
delays the requests behind it, as it does for users.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchproof.measure.loadtest.request_log import (
    ANSWERED,
    FAILED,
    REJECTED,
    SERVED,
    RequestLog,
)
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import one_line

# A sleep may end this much too late; the rest of the wait yields in a loop.
_SLEEP_MARGIN_S = 0.0003
_NAP_S = 0.25  # the longest sleep before the log is asked whether to stop
LEAST_DRAIN_S = 10.0
_ERROR_TEXTS = 20  # different texts that are counted apart
OTHER_ERRORS = "other errors"

# Answers the requests with these numbers together.
Answer = Callable[[Sequence[int]], None]


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on the clock of the process."""

    def sleep_until(self, moment: float) -> None:
        """Waits; may return a little later, and not earlier."""


class PerformanceClock:
    """`time.perf_counter`, the clock of everything in the process."""

    now = staticmethod(time.perf_counter)

    def sleep_until(self, moment: float) -> None:
        left_s = moment - time.perf_counter()
        if left_s > _SLEEP_MARGIN_S:
            time.sleep(left_s - _SLEEP_MARGIN_S)
        while time.perf_counter() < moment:
            time.sleep(0)  # lets other threads have the GIL


@dataclass(frozen=True)
class Batching:
    """How long the first request of a batch waits for others, and for how many."""

    window_s: float = 0.0
    most: int = 1


ALONE = Batching()


class Queue:
    """Which requests a worker takes next; it uses no clock and no thread.

    The timetable is known, so what a batch will contain when its window ends is known
    as well: the requests of the same call that arrive within the window. A request that
    arrives while `limit` others wait is rejected.
    """

    def __init__(
        self, timetable: Timetable, batching: Batching, limit: int | None = None
    ) -> None:
        self._arrival_s = timetable.arrival_s
        self._call = timetable.call
        self._batching = batching
        self._limit = limit
        self._taken = bytearray(len(timetable))
        self._next = 0
        self._arrived = 1  # requests so far; the first one finds an idle worker
        self._waiting: set[int] = set()

    def reject(self, now: float) -> Iterator[int]:
        """Drops each request that found the queue full until now; yields them."""
        while self._limit is not None and self._arrived < len(self._taken):
            if self._arrival_s[self._arrived] > now:
                return
            if not self._taken[self._arrived]:
                if len(self._waiting) < self._limit:
                    self._waiting.add(self._arrived)
                else:
                    self._taken[self._arrived] = True
                    yield self._arrived
            self._arrived += 1

    def take(self, now: float) -> tuple[list[int], float] | None:
        """The numbers of the requests, and when they are ready; None at the end."""
        while self._next < len(self._taken) and self._taken[self._next]:
            self._next += 1
        if self._next == len(self._taken):
            return None
        numbers = [self._next]
        arrival = self._arrival_s[self._next]
        deadline = max(now, arrival + self._batching.window_s)
        ready = arrival
        if self._batching.most > 1:
            numbers += self._companions(deadline)
            full = len(numbers) == self._batching.most
            ready = self._arrival_s[numbers[-1]] if full else deadline
        for number in numbers:
            self._taken[number] = True
            self._waiting.discard(number)
        return numbers, ready

    def _companions(self, deadline: float) -> list[int]:
        found: list[int] = []
        call = self._call[self._next]
        for number in range(self._next + 1, len(self._taken)):
            if self._arrival_s[number] > deadline:
                break
            if self._call[number] == call and not self._taken[number]:
                found.append(number)
                if len(found) + 1 == self._batching.most:
                    break
        return found


def serve(
    answer: Answer,
    log: RequestLog,
    *,
    workers: int = 1,
    batching: Batching = ALONE,
    queue_limit: int | None = None,
    clock: Clock | None = None,
) -> dict[str, int]:
    """Answers all requests, until the end or until the drain takes too long.

    Returns how many failed, by the text of their error.

    Requests that wait when the timetable ends are answered for as long again, at least
    10 s, not counting the time to the first answer.
    """
    queue = Queue(log.timetable, batching, queue_limit)
    server = _Server(answer, log, queue, clock or PerformanceClock())
    threads = [
        threading.Thread(target=server.run, args=(number,), name=thread_of(number))
        for number in range(1, workers)
    ]
    for thread in threads:
        thread.start()
    try:
        server.run(0)
    except BaseException:
        log.stop()  # an interrupt reaches this thread alone
        raise
    finally:
        for thread in threads:
            thread.join()
    return dict(server.errors)


def thread_of(worker: int) -> str:
    """The name of a worker's thread; the first one is the thread that serves."""
    return f"worker-{worker}" if worker else threading.current_thread().name


class _Server:
    """What the workers share: the queue, the time of the test, and its errors."""

    def __init__(
        self, answer: Answer, log: RequestLog, queue: Queue, clock: Clock
    ) -> None:
        self._answer, self._log, self._queue = answer, log, queue
        self._length_s = log.timetable.length_s
        self._clock = clock
        self._lock = threading.Lock()
        self._first_answer_s: float | None = None
        self.errors: Counter[str] = Counter()
        self._origin = self._clock.now()
        log.begin_at(self._origin)

    def run(self, worker: int) -> None:
        """Takes and answers requests until there are none, or the test ends."""
        while not self._is_over(now := self._now()):
            with self._lock:
                for number in self._queue.reject(now):
                    self._log.state[number] = REJECTED
                claim = self._queue.take(now)
            if claim is None:
                return
            numbers, ready = claim
            if ready > now:
                if not self._wait(ready):
                    return
                self._log.late[numbers[0]] = self._now() - ready
            self._answer_together(numbers, worker)

    def _now(self) -> float:
        """Seconds since the start of the timetable."""
        return self._clock.now() - self._origin

    def _is_over(self, now: float) -> bool:
        """Whether the parent stopped the test, or the drain has taken too long."""
        if self._log.is_stopped:
            return True
        if now <= self._length_s + LEAST_DRAIN_S or self._first_answer_s is None:
            return False
        begin = max(self._length_s, self._first_answer_s)
        return now > begin + max(self._length_s, LEAST_DRAIN_S)

    def _wait(self, ready: float) -> bool:
        """Sleeps until requests are ready; False if the parent stops the test."""
        while ready - self._now() > _NAP_S:
            self._clock.sleep_until(self._clock.now() + _NAP_S)
            if self._log.is_stopped:
                return False
        self._clock.sleep_until(self._origin + ready)
        return True

    def _answer_together(self, numbers: Sequence[int], worker: int) -> None:
        log, count, state = self._log, len(numbers), ANSWERED
        begin = self._now()
        for number in numbers:
            log.begin[number] = begin
            log.worker[number], log.batch[number] = worker, count
            log.state[number] = SERVED
        try:
            self._answer(numbers)
        except (Exception, SystemExit) as error:
            state = FAILED
            self._count_error(error, count)
        end = self._now()
        if self._first_answer_s is None:
            self._first_answer_s = end
        for number in numbers:
            log.end[number], log.state[number] = end, state

    def _count_error(self, error: BaseException, count: int) -> None:
        text = one_line(traceback.format_exception_only(error)[-1].strip(), 200)
        with self._lock:
            if text not in self.errors and len(self.errors) >= _ERROR_TEXTS:
                text = OTHER_ERRORS
            self.errors[text] += count
