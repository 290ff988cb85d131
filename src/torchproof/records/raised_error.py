"""An exception that ended a call of the target, as another process can read it."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from torchproof.records.blame import place_of
from torchproof.records.events import DeadTensorEvent, RaisedEvent
from torchproof.records.frame import Frame
from torchproof.records.schema import Record
from torchproof.records.stacks import frames_in, split_region

# Torch's error for a read of overwritten memory; it is a plain RuntimeError.
_OVERWRITTEN = re.compile(
    r"accessing (?P<gradient>gradient )?tensor output of CUDAGraphs that has been"
    r" overwritten by a subsequent run\.\s*Stack trace:(?P<stack>.*)",
    re.DOTALL,
)


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

    def event(
        self, function: Frame | None, call: int | None = None
    ) -> RaisedEvent | DeadTensorEvent:
        """The event; `function` is the target's."""
        stack = tuple(Frame(*each) for each in self.frames)
        overwritten = _OVERWRITTEN.search(self.message)
        if overwritten is not None and self.phase is None:
            # It names the line that produced the tensor. Torch raises it only while it
            # warms up and records.
            reader = place_of(stack).frame
            return DeadTensorEvent(
                frames=frames_in(overwritten["stack"]),
                function=function,
                call=call,
                role="gradient" if overwritten["gradient"] else "output",
                reader=(reader,) if reader else (),
                raised=self.message,
            )
        region = split_region(stack)
        return RaisedEvent(
            frames=region.inside if region else stack,
            function=function,
            call=call,
            error=self.error,
            message=self.message,
            phase=self.phase,
            where=stack,
        )
