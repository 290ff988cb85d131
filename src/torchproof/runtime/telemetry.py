"""What happened to one compiled model: counted, logged, and told to whoever asks.

Log handlers and listeners are code of others, which may call the model. So they run by
`deliver`, where nothing is being compiled and no lock is held: after a call has its
answer, in the thread that made it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torchproof.process import forks
from torchproof.runtime.status_report import Compilation, Fallback, Stuck

log = logging.getLogger("torchproof")

# Called with the kind of a thing ("compilation", "fallback", "stuck", "verification",
# "strategy", "drift") and its record as JSON.
Listener = Callable[[str, Mapping[str, Any]], None]

_KEPT = 1000  # of each kind: a service that runs for months must not grow


class Telemetry:
    """Counters and records; every method may be called from any thread."""

    def __init__(self, name: str, listener: Listener | None) -> None:
        self.name = name
        self._listener = listener
        self._lock = forks.lock()
        self._delivering = forks.lock()
        self.undelivered: deque[Callable[[], None]] = deque(maxlen=_KEPT)
        # A call takes a number and keeps it here: right with threads, and fast.
        self.numbers = itertools.count()
        self.here = threading.local()
        self._eager_calls = 0
        self._eager_since: int | None = None  # the first call of which all are eager
        self.compilations: list[Compilation] = []
        self.fallbacks: list[Fallback] = []
        self.stuck: list[Stuck] = []
        self.verifications: list[Mapping[str, Any]] = []
        self.notes: list[str] = []
        self.recompiles = 0
        self.compile_s = 0.0
        forks.register(self)

    def after_fork(self) -> None:
        self.undelivered.clear()  # the parent delivers it

    # -- calls -------------------------------------------------------------------------

    @property
    def call(self) -> int | None:
        """The call that this thread is in."""
        return getattr(self.here, "call", None)

    def ran_eager(self) -> None:
        """Some of the call under way, if one is, ran eager; counted once a call."""
        number = self.call
        if number is not None and not self.was_eager:
            self.here.eager = number
            with self._lock:
                self._eager_calls += 1

    def all_eager(self, value: bool) -> None:
        """Whether all calls that follow run eager, and need not say so."""
        with self._lock:
            since, self._eager_since = self._eager_since, None
            if since is not None:
                self._eager_calls += self.calls - since
            if value:
                self._eager_since = self.calls

    def this_call_too(self) -> None:
        """If all calls that follow are eager, so is the one under way."""
        with self._lock:
            if self._eager_since is not None and self.call is not None:
                self._eager_since = min(self._eager_since, self.call)

    @property
    def is_all_eager(self) -> bool:
        return self._eager_since is not None

    @property
    def counting(self) -> tuple[Iterator[int], Any, deque[Callable[[], None]]]:
        """Where a call takes its number, keeps it as `call`, and what it delivers.

        Where all are eager, nobody asks which one it is, and any object will do.
        """
        here = SimpleNamespace() if self.is_all_eager else self.here
        return self.numbers, here, self.undelivered

    @property
    def was_eager(self) -> bool:
        """Whether some of the call under way ran eager."""
        if self.is_all_eager:
            return True
        return self.call is not None and getattr(self.here, "eager", None) == self.call

    @property
    def calls(self) -> int:
        # "count(3)": all that it tells of where it is, without taking a number.
        return int(repr(self.numbers).removeprefix("count(").removesuffix(")"))

    @property
    def compiled_calls(self) -> int:
        since = self._eager_since
        calls = self.calls if since is None else since
        return max(0, calls - self._eager_calls)

    # -- records -----------------------------------------------------------------------

    def compiled(self, item: Compilation) -> None:
        self._add(self.compilations, item)
        with self._lock:
            self.recompiles += item.cause is not None
        self.tell("compilation", dataclasses.asdict(item))

    def spent(self, seconds: float) -> None:
        """Time that compiling took, whatever came of it."""
        with self._lock:
            self.compile_s += seconds

    def fell_back(self, item: Fallback) -> None:
        """One line in the log for each thing that runs eager."""
        self._add(self.fallbacks, item)
        phase = f" in {item.phase}" if item.phase else ""
        self.log(
            logging.WARNING,
            f"{item.what} runs eager ({item.kind}{phase}): {item.why}",
        )
        self.tell("fallback", dataclasses.asdict(item))

    def withdraw(self, items: list[Fallback]) -> None:
        """These were the model's own errors, which eager raises as well."""
        with self._lock:
            for item in items:
                if item in self.fallbacks:
                    self.fallbacks.remove(item)

    def is_stuck(self, item: Stuck) -> None:
        self._add(self.stuck, item)
        self.log(logging.ERROR, f"thread {item.thread} is stuck in {item.where}")
        self.tell("stuck", dataclasses.asdict(item))

    def verified(self, record: Mapping[str, Any]) -> None:
        self._add(self.verifications, record)
        self.tell("verification", record)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self._add(self.notes, text)
            self.log(logging.INFO, text)

    # -- to others ---------------------------------------------------------------------

    def log(self, level: int, text: str) -> None:
        line = functools.partial(log.log, level, "%s: %s", self.name, text)
        self.undelivered.append(line)

    def tell(self, kind: str, record: Mapping[str, Any]) -> None:
        if self._listener is not None:
            self.undelivered.append(functools.partial(self._tell, kind, record))

    def deliver(self) -> None:
        """Writes log lines and calls the listener, in order, one thread at a time.

        What comes meanwhile, from other threads or because the listener calls the
        model, is delivered by the thread that is at it.
        """
        while self.undelivered and self._delivering.acquire(blocking=False):
            try:
                while self.undelivered:
                    _shielded(self.undelivered.popleft())
            finally:
                self._delivering.release()

    def _tell(self, kind: str, record: Mapping[str, Any]) -> None:
        assert self._listener is not None
        try:
            self._listener(kind, record)
        except Exception:
            log.exception("%s: on_event failed on %s", self.name, kind)

    def _add(self, items: list[Any], item: Any) -> None:
        with self._lock:
            items.append(item)
            del items[:-_KEPT]


def _shielded(act: Callable[[], None]) -> None:
    """Somebody's metrics or log handler must not take the model down with it."""
    try:
        act()
    except Exception:
        if logging.raiseExceptions:  # as `logging` itself decides it
            traceback.print_exc()
