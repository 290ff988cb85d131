"""Counts, records and logs what happens to one compiled model.

Log handlers and listeners are the user's code and may call the model. So `deliver` runs
them when nothing is being compiled and no lock is held: in the thread that called the
model, after the call has its answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

from torchproof.process import forks
from torchproof.records import JsonObject
from torchproof.runtime.status_report import (
    WORTH_LOGGING_S,
    Compilation,
    EagerReason,
    Fallback,
    Totals,
    where_eager,
)

log = logging.getLogger("torchproof")


@dataclass(frozen=True)
class _Event:
    """Something to log or to tell a listener, perhaps about a fallback."""

    act: Callable[[], None]
    about: Fallback | None


@dataclass(frozen=True)
class CallCounts:
    """All calls so far, and those that ran eager, in whole or in part, by reason."""

    calls: int
    eager: Mapping[EagerReason, int]

    @property
    def compiled(self) -> int:
        return max(0, self.calls - sum(self.eager.values()))

    def eager_calls(
        self, compiled_calls: int, *, has_code: bool
    ) -> dict[EagerReason, int]:
        """The reasons for all calls that are not compiled; they add up."""
        found = dict(self.eager)
        rest = self.calls - compiled_calls - sum(found.values())
        if rest > 0:
            why: EagerReason = "not recorded" if has_code else "no graph"
            found[why] = found.get(why, 0) + rest
        return found


# Takes the kind of an event ("compilation", "fallback", "verification" or "strategy")
# and its record as JSON.
Listener = Callable[[str, JsonObject], None]

_MOST_RECORDS = (
    1000  # records of each kind: a service that runs for months must not grow
)
# The code of functions whose frames hold the number of a call, by address: code that
# Dynamo generates cannot always be hashed.
_counting: dict[int, CodeType] = {}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def counts_calls(function: _Function) -> _Function:
    """Marks a function that takes `number` from `numbers`, both local variables."""
    _counting[id(function.__code__)] = function.__code__
    return function


class Telemetry:
    """Counters and records; every method may be called from any thread."""

    def __init__(self, name: str, listener: Listener | None) -> None:
        self.name = name
        self._listener = listener
        self._lock = forks.lock()
        self._delivering = forks.lock()
        self.undelivered: list[_Event] = []
        self.numbers = itertools.count()  # each call takes one: thread-safe, and fast
        self.current = threading.local()  # the last call that ran eager
        self._eager_calls = Counter[EagerReason]()
        self._eager_since: int | None = None  # from this call on all calls are eager
        self._eager_why: EagerReason = "strategy"  # for these calls
        self.compilations: list[Compilation] = []
        self.fallbacks: list[Fallback] = []
        self.verifications: list[JsonObject] = []
        self.notes: list[str] = []
        self.breaks: set[tuple[str, int]] = set()  # their places
        self.recompiles = 0
        self.compile_s = 0.0
        self._compilations = 0
        self._fallbacks = Counter[str]()  # by kind
        self._stalls = 0
        self._stall_s = 0.0
        # What compiling has cost, if that is worth a line in the log.
        self.cost: Callable[[], str | None] = lambda: None
        self._has_logged_cost = False
        forks.register(self)

    def after_fork(self) -> None:
        self.undelivered.clear()  # the parent delivers its events

    # -- calls -------------------------------------------------------------------------

    @property
    def call(self) -> int | None:
        """The number of the call that this thread is in; the innermost, if nested.

        Few calls need it, so it is looked up on the stack: every call would pay for
        storing it per thread.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if id(frame.f_code) in _counting:
                names = frame.f_locals
                if names.get("numbers") is self.numbers:
                    return names.get("number")
            frame = frame.f_back
        return None

    @staticmethod
    def of_running_call() -> Telemetry | None:
        """That of the innermost model that this thread calls."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if id(frame.f_code) in _counting:
                telemetry: Telemetry = frame.f_locals["self"].telemetry
                return telemetry
            frame = frame.f_back
        return None

    def ran_eager(self, why: EagerReason) -> None:
        """Counts the current call as eager, once, if part of it ran eager.

        The first reason counts.
        """
        number = None if self.is_all_eager else self.call
        if number is not None and number != getattr(self.current, "eager", None):
            self.current.eager = number
            self.current.why = why
            with self._lock:
                self._eager_calls[why] += 1

    def raised(self) -> None:
        """Counts the current call as one that raised, whatever ran eager before."""
        self.ran_eager("raised")
        if self.was_eager and not self.is_all_eager:
            with self._lock:
                self._eager_calls[self.current.why] -= 1
                self._eager_calls["raised"] += 1
            self.current.why = "raised"

    def ran_eager_under(self, stance: str) -> None:
        """The same, because of `torch.compiler.set_stance`."""
        self.ran_eager("disabled")
        self.note(f'calls ran eager under torch.compiler.set_stance("{stance}")')

    def all_eager(self, value: bool, why: EagerReason = "strategy") -> None:
        """Sets whether all following calls run eager, and need not be counted."""
        with self._lock:
            since, self._eager_since = self._eager_since, None
            if since is not None:
                self._eager_calls[self._eager_why] += self.calls - since
            if value:
                self._eager_since = self.calls
                self._eager_why = why

    def mark_current_call_eager(self) -> None:
        """Counts the current call as eager if all following calls are."""
        call = self.call
        with self._lock:
            if self._eager_since is not None and call is not None:
                self._eager_since = min(self._eager_since, call)

    @property
    def is_all_eager(self) -> bool:
        return self._eager_since is not None

    @property
    def per_call(self) -> tuple[Iterator[int], list[_Event]]:
        """What each call uses: the counter, and the events that it may have to deliver.

        Both stay the same objects.
        """
        return self.numbers, self.undelivered

    @property
    def was_eager(self) -> bool:
        """Whether part of the current call ran eager."""
        if self.is_all_eager:
            return True
        call = self.call
        return call is not None and getattr(self.current, "eager", None) == call

    @property
    def calls(self) -> int:
        # Its repr, "count(3)", has the next number; `next` would take it.
        return int(repr(self.numbers).removeprefix("count(").removesuffix(")"))

    @property
    def compiled_calls(self) -> int:
        return self.call_counts().compiled

    def call_counts(self) -> CallCounts:
        with self._lock:
            calls = self.calls
            eager = Counter(self._eager_calls)
            if self._eager_since is not None:
                eager[self._eager_why] += max(0, calls - self._eager_since)
        return CallCounts(calls, +eager)

    # -- records -----------------------------------------------------------------------

    def compiled(self, item: Compilation) -> None:
        self._add(self.compilations, item)
        with self._lock:
            self._compilations += 1
            self.recompiles += item.cause is not None
        self.emit("compilation", dataclasses.asdict(item))

    def broke_at(self, places: set[tuple[str, int]]) -> None:
        """Counts graph breaks, each place once."""
        with self._lock:
            self.breaks |= places

    def add_compile_time(self, seconds: float) -> None:
        """Adds the duration of a compilation, successful or not.

        Logs once that compiling takes long, unless it is known to pay off.
        """
        with self._lock:
            self.compile_s += seconds
        if self.compile_s < WORTH_LOGGING_S or self._has_logged_cost:
            return
        if text := self.cost():
            self._has_logged_cost = True
            self.log(logging.WARNING, text)

    def fell_back(self, item: Fallback) -> None:
        """Records a fallback and logs one line."""
        self._add(self.fallbacks, item)
        with self._lock:
            self._fallbacks[item.kind] += 1
        phase = f" in {item.phase}" if item.phase else ""
        text = f"{item.what} runs eager{where_eager(item)} ({item.kind}{phase})"
        self.log(logging.WARNING, f"{text}: {item.why}", about=item)
        self.emit("fallback", dataclasses.asdict(item), about=item)

    def meets(self, item: Fallback) -> None:
        """Records a fallback of shared code, once."""
        if item not in self.fallbacks:
            self.fell_back(item)

    def remove(self, items: list[Fallback]) -> None:
        """Removes fallbacks that the model's own error caused, before any is shown."""
        with self._lock:
            self.undelivered[:] = [
                each
                for each in self.undelivered
                if each.about is None or each.about not in items
            ]
            for item in items:
                if item in self.fallbacks:
                    self.fallbacks.remove(item)
                    self._fallbacks[item.kind] -= 1

    @contextlib.contextmanager
    def stall(self) -> Iterator[None]:
        """Counts the current call as one that waits for the compiler, once."""
        call = self.call
        started = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._stall_s += time.monotonic() - started
                is_known = call == getattr(self.current, "stalled", None) is not None
                self._stalls += not is_known
            self.current.stalled = call

    @property
    def totals(self) -> Totals:
        with self._lock:
            fallbacks = {kind: n for kind, n in self._fallbacks.items() if n}
            return Totals(self._compilations, fallbacks, self._stalls, self._stall_s)

    def verified(self, record: JsonObject) -> None:
        self._add(self.verifications, record)
        self.emit("verification", record)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self._add(self.notes, text)
            self.log(logging.INFO, text)

    def remove_note(self, text: str) -> None:
        with self._lock:
            self.notes[:] = [note for note in self.notes if note != text]

    # -- log and listener --------------------------------------------------------------

    def log(self, level: int, text: str, about: Fallback | None = None) -> None:
        act = functools.partial(log.log, level, "%s: %s", self.name, text)
        self._enqueue(_Event(act, about))

    def emit(
        self, kind: str, record: JsonObject, about: Fallback | None = None
    ) -> None:
        if self._listener is not None:
            act = functools.partial(self._call_listener, kind, record)
            self._enqueue(_Event(act, about))

    def _enqueue(self, event: _Event) -> None:
        # A list and no deque, because every call looks whether it is empty, and code
        # that nothing else in the call uses is slow to reach.
        self.undelivered.append(event)
        del self.undelivered[:-_MOST_RECORDS]

    def deliver(self) -> None:
        """Writes log lines and calls the listener, in order, one thread at a time.

        The delivering thread also delivers events that arrive meanwhile, from other
        threads or because the listener calls the model.
        """
        while self.undelivered and self._delivering.acquire(blocking=False):
            try:
                while self.undelivered:
                    _shielded(self.undelivered.pop(0).act)
            finally:
                self._delivering.release()

    def _call_listener(self, kind: str, record: JsonObject) -> None:
        assert self._listener is not None
        try:
            self._listener(kind, record)
        except Exception:
            log.exception("%s: on_event failed on %s", self.name, kind)

    def _add(self, items: list[Any], item: Any) -> None:
        with self._lock:
            items.append(item)
            del items[:-_MOST_RECORDS]


def _shielded(act: Callable[[], None]) -> None:
    """Runs a listener or a log handler; its error must not fail the model's call."""
    try:
        act()
    except Exception:
        if logging.raiseExceptions:  # the switch that `logging` itself uses
            traceback.print_exc()
