"""An exception that ended a call of the target, as another process can read it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from torchproof.records.frame import Frame
from torchproof.records.run import Event
from torchproof.records.schema import Record
from torchproof.records.stacks import split_region


@dataclass(frozen=True)
class RaisedError(Record):
    """An exception of a call that eager completes, and what was being compiled."""

    error: str  # its type
    message: str
    phase: str | None  # a frame or a backward was being compiled; None: nothing was
    frames: tuple[tuple[str, int, str], ...] = ()  # file, line, function

    @classmethod
    def of(cls, error: Exception, phase: str | None) -> RaisedError:
        frames = traceback.extract_tb(error.__traceback__)
        return cls(
            type(error).__name__,
            str(error),
            phase,
            tuple((f.filename, f.lineno or 0, f.name) for f in frames),
        )

    def event(self, function: Frame | None, call: int | None = None) -> Event:
        """The event; `function` is the target's."""
        stack = tuple(Frame(*each) for each in self.frames)
        region = split_region(stack)
        return Event(
            "raised_error",
            frames=region.inside if region else stack,
            function=function,
            data={
                "error": self.error,
                "message": self.message,
                "phase": self.phase,
                "where": stack,
            },
            call=call,
        )
