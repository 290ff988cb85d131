"""Writes down what outlived its memory, with its holder, and keeps within bounds.

Comes in: one output at a time. Goes out: entries `dead_read` and `dead_held`. What one
line produces is searched for holders a few times, told in full some times, and counted
after that: the last entry of its kind then stands for `times` outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torchproof.observe.audit.assignment_site import assignment_site
from torchproof.observe.audit.referrers import Referrer, referrer_of, sharing
from torchproof.records import Frame
from torchproof.targets import plain
from torchproof.torch_private import Memory

_SEARCHES = 3  # for holders of what one line produces: each looks at every object
_TOLD = 50  # in full

Kind = Literal["dead_read", "dead_held"]
Key = tuple[Any, ...]


@dataclass
class Output:
    """One tensor that a graph returned."""

    memory: Memory
    dtype: Any
    role: str  # output or gradient
    producer: tuple[Frame, ...]
    function: Frame | None
    call: int | None
    run: int  # of the graph that returned it
    poisons: bool
    used: bool = False  # while its memory was its own
    died_in: int | None = None
    overwriter: tuple[Frame, ...] = ()
    told: Kind | None = None

    @property
    def alive(self) -> bool:
        return self.memory.alive

    @property
    def line(self) -> tuple[Frame | None, ...]:
        """What produced it, as one line of code."""
        return self.producer[-1:] or (self.function,)


class Reporter:
    """Tells of each output once, and of one that was held again when it is read."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._searches: Counter[Key] = Counter()
        self._kept: set[Key] = set()  # held by more than a variable
        self._counts: Counter[Key] = Counter()
        self._last: dict[Key, dict[str, Any]] = {}
        self.searching = False  # looks at tensors itself

    def read(self, output: Output, reader: tuple[Frame, ...], operation: str) -> None:
        holder = self._holder(output, "dead_read")
        self._tell(
            output, "dead_read", holder, reader=plain(reader), operation=operation
        )

    def held(self, output: Output) -> None:
        """Told only where more than a variable holds it, which will be bound again."""
        key = ("dead_held", output.role, output.line)
        holder = self._holder(output, "dead_held")
        if holder is not None and not holder.is_variable:
            self._kept.add(key)
        elif holder is not None or key not in self._kept:
            return
        self._tell(output, "dead_held", holder)

    def can_search(self, output: Output) -> bool:
        key = ("dead_held", output.role, output.line)
        return key in self._kept or self._searches[key] < _SEARCHES

    def close(self) -> None:
        """What was only counted."""
        for key, entry in self._last.items():
            self._write(key[0], **entry, times=self._counts[key] - _TOLD)
        self._last.clear()

    def _holder(self, output: Output, kind: Kind) -> Referrer | None:
        key = (kind, output.role, output.line)
        self._searches[key] += 1
        if self._searches[key] > _SEARCHES:
            return None
        self.searching = True
        try:
            return referrer_of(sharing([output.memory.key])[output.memory.key])
        finally:
            self.searching = False

    def _tell(
        self,
        output: Output,
        kind: Kind,
        holder: Referrer | None,
        *,
        reader: list[list[Any]] | None = None,
        operation: str | None = None,
    ) -> None:
        output.told = kind
        stored = _stored(holder, output) if holder else None
        entry: dict[str, Any] = {
            "role": output.role,
            "producer": plain(output.producer),
            "function": plain([output.function]) if output.function else [],
            "overwriter": plain(output.overwriter),
            "reader": reader or [],
            "operation": operation,
            "holder": holder.path if holder else None,
            "stored": plain([stored]) if stored else [],
            "call": output.call,
        }
        key = (kind, output.role, output.line, operation)
        self._counts[key] += 1
        if self._counts[key] <= _TOLD:
            self._write(kind, **entry, times=1)
        else:
            self._last[key] = entry


def _stored(holder: Referrer, output: Output) -> Frame | None:
    """Outside of compiled code as a rule; a module may also store in its forward."""
    inside = (output.function,) if output.function else ()
    return assignment_site(holder.path, (*inside, *output.producer))
