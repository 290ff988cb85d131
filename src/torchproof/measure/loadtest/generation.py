"""Serves a text model with continuous batching, in an open loop.

A fixed number of slots decode together, one token each per step. Between two steps, at
most one waiting request is put into a free slot, which gives its first token. So a
request waits for a slot and not for a batch, and a prompt delays the others by one
prefill at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torchproof.measure.loadtest.request_log import (
    ANSWERED,
    FAILED,
    REJECTED,
    SERVED,
    RequestLog,
)
from torchproof.measure.loadtest.serving import (
    Clock,
    NoObserver,
    Observer,
    Served,
    Timekeeper,
)
from torchproof.measure.loadtest.text_requests import TextRequest
from torchproof.measure.loadtest.timetable import Timetable


class Slots(Protocol):
    """What generates the tokens: `TextSlots`, or an imitation with its own clock."""

    count: int

    def fill(self, slot: int, request: TextRequest) -> int:
        """Puts a prompt into a slot; returns the first token of the answer."""

    def step(self, numbers: Mapping[int, int]) -> list[int]:
        """The next token of each slot; `numbers` has the tokens so far by slot."""

    def free(self, slot: int) -> None:
        """Ends the answer in a slot."""


@dataclass(frozen=True)
class TextSource:
    """Makes the requests by their number, and receives their tokens."""

    request: Callable[[int], TextRequest]
    receive: Callable[[int, list[int]], None] = lambda number, tokens: None
    queue_limit: int | None = None  # a request that finds so many waiting is rejected
    end_tokens: frozenset[int] = frozenset()  # an answer ends with one, if not before


def serve_generation(
    slots: Slots,
    source: TextSource,
    timetable: Timetable,
    log: RequestLog,
    *,
    observer: Observer | None = None,
    clock: Clock | None = None,
) -> Served:
    """Answers all requests, until the end or until the drain takes too long."""
    timekeeper = Timekeeper(timetable, log, clock)
    _Loop(slots, source, timekeeper, observer or NoObserver()).run()
    return timekeeper.served()


@dataclass
class _Answer:
    """A request in a slot, and its tokens so far."""

    request: TextRequest
    tokens: list[int]

    def is_complete(self, end_tokens: frozenset[int]) -> bool:
        enough = len(self.tokens) >= self.request.output_tokens
        return enough or self.tokens[-1] in end_tokens


class _Loop:
    """The queue and the slots of one test, served by one thread."""

    def __init__(
        self,
        slots: Slots,
        source: TextSource,
        timekeeper: Timekeeper,
        observer: Observer,
    ) -> None:
        self._slots, self._source = slots, source
        self._timekeeper, self._log = timekeeper, timekeeper.log
        self._observer = observer
        self._arrival_s = timekeeper.timetable.arrival_s
        self._next = 0  # the request that arrives next
        self._queue: deque[int] = deque()
        self._free = list(range(slots.count))
        self._answers: dict[int, _Answer] = {}  # by slot

    def run(self) -> None:
        try:
            self._serve()
        finally:
            for slot in list(self._answers):  # of a test that ended early
                self._leave(slot)

    def _serve(self) -> None:
        while True:
            now = self._timekeeper.now()
            if self._timekeeper.is_over(now):
                return
            self._receive(now)
            if self._queue and self._free:
                self._start(self._queue.popleft(), self._free.pop())
            if self._answers:
                self._step()
            elif not self._queue and not self._wait():
                return

    def _receive(self, now: float) -> None:
        """Queues the requests that arrived during the last step, or rejects them."""
        limit = self._source.queue_limit
        while self._next < len(self._arrival_s) and self._arrival_s[self._next] <= now:
            # A request that a free slot can take does not wait.
            waiting = len(self._queue) - len(self._free)
            if limit is not None and waiting >= limit:
                self._log.state[self._next] = REJECTED
            else:
                self._queue.append(self._next)
            self._next += 1

    def _wait(self) -> bool:
        """Sleeps until the next arrival; False if there is none."""
        if self._next == len(self._arrival_s):
            return False
        ready = self._arrival_s[self._next]
        if not self._timekeeper.wait(ready):
            return False
        self._log.late[self._next] = self._timekeeper.now() - ready
        return True

    def _start(self, number: int, slot: int) -> None:
        """Prefill: puts a request into a slot."""
        log = self._log
        log.begin[number] = self._timekeeper.now()
        log.worker[number] = slot  # each serves one request at a time
        log.batch[number] = len(self._answers) + 1
        log.state[number] = SERVED
        self._observer.begin_request(number)
        try:
            request = self._source.request(number)
            token = self._slots.fill(slot, request)
        except (Exception, SystemExit) as error:
            self._fail(number, [])
            self._timekeeper.count_error(error, 1)
            self._free.append(slot)
            return
        finally:
            self._observer.end_request(number)
        log.first_token[number] = self._timekeeper.now()
        self._answers[slot] = _Answer(request, [token])
        self._finish(slot)

    def _step(self) -> None:
        """Decode: one more token for every request in a slot."""
        # Of requests that are served together, observers get the first.
        first = next(iter(self._answers.values())).request.number
        self._observer.begin_request(first)
        try:
            numbers = {slot: len(a.tokens) for slot, a in self._answers.items()}
            tokens = self._slots.step(numbers)
        except (Exception, SystemExit) as error:
            self._timekeeper.count_error(error, len(self._answers))
            for slot, answer in list(self._answers.items()):
                self._fail(answer.request.number, answer.tokens)
                self._leave(slot)
            return
        finally:
            self._observer.end_request(first)
        for slot, answer in list(self._answers.items()):
            answer.tokens.append(tokens[slot])
            self._finish(slot)

    def _finish(self, slot: int) -> None:
        """Ends the answer in a slot if it is complete."""
        answer = self._answers[slot]
        if not answer.is_complete(self._source.end_tokens):
            return
        number = answer.request.number
        self._log.tokens[number] = len(answer.tokens)
        self._timekeeper.end([number], ANSWERED)
        self._source.receive(number, answer.tokens)
        self._leave(slot)

    def _leave(self, slot: int) -> None:
        del self._answers[slot]
        self._slots.free(slot)
        self._free.append(slot)

    def _fail(self, number: int, tokens: list[int]) -> None:
        self._log.tokens[number] = len(tokens)
        self._timekeeper.end([number], FAILED)
