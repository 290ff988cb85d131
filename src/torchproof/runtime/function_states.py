"""What becomes of each function that Dynamo asks to compile, as one state.

`docs/architecture.md` has the table of transitions.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from types import CodeType

from torchproof.runtime.status_report import Fallback
from torchproof.torch_private import frames


class State(enum.Enum):
    """What happens when Dynamo asks to compile a function."""

    OPEN = "it is compiled"
    TRACED = "it runs eager: a thread compiles it, and its call waits for that"
    PAUSED = "it runs eager for some calls: what it reads changed while it was traced"
    REFUSED = "it runs eager, and existing code stays in use"
    BREAKS = "the call raises: with `fullgraph`, the background met a graph break"


@dataclass(frozen=True)
class Refusal:
    """A function that is not compiled again; with `inner`, its callees may be."""

    inner: bool
    item: Fallback
    call: int | None = None  # the number of the call in which it was decided


@dataclass(frozen=True, eq=False)
class Claim:
    """Marks a function that a thread is compiling; `done` is set when that ends."""

    done: threading.Event = field(default_factory=threading.Event)
    thread: int = field(default_factory=threading.get_ident)

    @property
    def is_mine(self) -> bool:
        return self.thread == threading.get_ident()


@dataclass(eq=False)
class Function:
    """A function of a model, and its state."""

    code: CodeType
    given_name: str | None = None  # of a function that the strategy compiles
    decorator: str | None = None  # around the method that is named
    state: State = State.OPEN
    claim: Claim | None = None  # TRACED
    refusal: Refusal | None = None  # REFUSED
    error: BaseException | None = None  # BREAKS
    next_call: int = 0  # PAUSED until then
    disturbed: int = 0  # how often, since it was compiled last
    unused: int = 0  # background compilations that no call has used
    is_rejected: bool = False  # eager seemed to reject the types of a call
    rejected_in: int | None = None  # this one

    @property
    def name(self) -> str:
        return self.given_name or frames.describe_code(self.code)

    def open(self) -> None:
        """It may be compiled: for the first time, again, or after `retry`."""
        self.state = State.OPEN
        self.refusal = self.error = None

    def trace(self, claim: Claim) -> None:
        self.state, self.claim = State.TRACED, claim

    def end_trace(self) -> None:
        """What was decided meanwhile stays."""
        self.claim = None
        if self.state is State.TRACED:
            self.open()

    def pause(self, calls: int) -> None:
        """Tries again after twice as many calls as the last time."""
        self.disturbed += 1
        self.state, self.next_call = State.PAUSED, calls + 2**self.disturbed

    def is_paused(self, calls: int) -> bool:
        if self.state is State.PAUSED and calls >= self.next_call:
            self.open()
        return self.state is State.PAUSED

    def refuse(self, refusal: Refusal) -> Refusal:
        self.state, self.refusal = State.REFUSED, refusal
        return refusal

    def raise_later(self, error: BaseException) -> None:
        self.state, self.error = State.BREAKS, error

    def raise_now(self) -> None:
        """Raises the graph break that the background met, once."""
        if self.state is State.BREAKS and (error := self.error) is not None:
            self.open()
            raise error
