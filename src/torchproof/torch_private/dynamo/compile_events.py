"""Torch's own events of compiling, in the thread that compiles, when they happen.

Torch times each phase for its trace, whether or not a trace is written. Phases at run
time, such as the tuning of a kernel in its first call, are among them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, Protocol

from torchproof.torch_private.hooks import patched


class Receiver(Protocol):
    """Gets the names of phases and events as torch has them: `inductor_compile`."""

    def phase_began(self, name: str, compile_id: str | None) -> None: ...
    def phase_ended(self, name: str) -> None: ...
    def happened(self, name: str) -> None: ...


@contextlib.contextmanager
def compile_events(receiver: Receiver) -> Iterator[None]:
    """Reports phases and events of all threads to the receiver."""
    logger = importlib.import_module("torch._dynamo.utils").ChromiumEventLogger
    begin, end = logger.log_event_start, logger.log_event_end
    instant = logger.log_instant_event

    @functools.wraps(begin)
    def log_event_start(self: Any, event_name: str, *args: Any, **kwargs: Any) -> None:
        begin(self, event_name, *args, **kwargs)
        receiver.phase_began(event_name, _compile_id())

    @functools.wraps(end)
    def log_event_end(self: Any, event_name: str, *args: Any, **kwargs: Any) -> None:
        receiver.phase_ended(event_name)
        end(self, event_name, *args, **kwargs)

    @functools.wraps(instant)
    def log_instant_event(
        self: Any, event_name: str, *args: Any, **kwargs: Any
    ) -> None:
        receiver.happened(event_name)
        instant(self, event_name, *args, **kwargs)

    with (
        patched(logger, "log_event_start", log_event_start),
        patched(logger, "log_event_end", log_event_end),
        patched(logger, "log_instant_event", log_instant_event),
    ):
        yield


def _compile_id() -> str | None:
    guards = importlib.import_module("torch._guards")
    compile_id = guards.CompileContext.current_compile_id()
    return None if compile_id is None else str(compile_id)
