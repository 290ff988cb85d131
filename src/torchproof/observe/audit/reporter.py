"""Reports outputs that were used or held after their memory was reused.

Takes one output at a time and writes entries `dead_read` and `dead_held`, with the
object that holds the output. To bound the cost, referrers are searched only a few times
for each producing line. After a number of entries, outputs of a line are only counted:
its last entry then stands for `times` outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchproof.observe.audit.assignment_site import assignment_site
from torchproof.observe.audit.referrers import Referrer, referrer_of, sharing
from torchproof.records import DeadTensorEvent, Frame
from torchproof.torch_private import Memory

_SEARCHES = 3  # for each producing line: a search looks at every live object
_MOST_ENTRIES = 50  # for each producing line, before outputs are only counted

Kind = Literal["dead_read", "dead_held"]
Key = tuple[Any, ...]


@dataclass
class Output:
    """One tensor that a graph returned."""

    memory: Memory
    dtype: Any
    role: Literal["output", "gradient"]
    producer: tuple[Frame, ...]
    function: Frame | None
    call: int | None
    run: int  # the number of the graph's run that returned it
    poisons: bool  # whether its dead memory is filled with NaN
    used: bool = False  # before its memory was reused
    died_in: int | None = None
    overwriter: tuple[Frame, ...] = ()
    reported: Kind | None = None

    @property
    def alive(self) -> bool:
        return self.memory.alive

    @property
    def line(self) -> tuple[Frame | None, ...]:
        """The line of code that produced it."""
        return self.producer[-1:] or (self.function,)


class Reporter:
    """Reports each output once, and again if one reported as held is read later."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._searches: Counter[Key] = Counter()
        self._held_keys: set[Key] = set()  # held by more than a local variable
        self._counts: Counter[Key] = Counter()
        self._last: dict[Key, DeadTensorEvent] = {}
        self.searching = False  # the search itself looks at tensors

    def read(self, output: Output, reader: tuple[Frame, ...], operation: str) -> None:
        referrer = self._find_referrer(output, "dead_read")
        self._report(output, "dead_read", referrer, reader=reader, operation=operation)

    def held(self, output: Output) -> None:
        """Reports the output unless only a local variable, soon rebound, holds it."""
        key = ("dead_held", output.role, output.line)
        referrer = self._find_referrer(output, "dead_held")
        if referrer is not None and not referrer.is_variable:
            self._held_keys.add(key)
        elif referrer is not None or key not in self._held_keys:
            return
        self._report(output, "dead_held", referrer)

    def can_search(self, output: Output) -> bool:
        key = ("dead_held", output.role, output.line)
        return key in self._held_keys or self._searches[key] < _SEARCHES

    def close(self) -> None:
        """Writes the entries that stand for outputs that were only counted."""
        for key, event in self._last.items():
            times = self._counts[key] - _MOST_ENTRIES
            self._write(key[0], **replace(event, times=times).to_json())
        self._last.clear()

    def _find_referrer(self, output: Output, kind: Kind) -> Referrer | None:
        key = (kind, output.role, output.line)
        self._searches[key] += 1
        if self._searches[key] > _SEARCHES:
            return None
        self.searching = True
        try:
            return referrer_of(sharing([output.memory.key])[output.memory.key])
        finally:
            self.searching = False

    def _report(
        self,
        output: Output,
        kind: Kind,
        referrer: Referrer | None,
        *,
        reader: tuple[Frame, ...] = (),
        operation: str | None = None,
    ) -> None:
        output.reported = kind
        stored = _stored(referrer, output) if referrer else None
        event = DeadTensorEvent(
            frames=output.producer,
            function=output.function,
            call=output.call,
            is_read=kind == "dead_read",
            role=output.role,
            holder=referrer.path if referrer else None,
            operation=operation,
            overwriter=output.overwriter,
            reader=reader,
            stored=(stored,) if stored else (),
        )
        key = (kind, output.role, output.line, operation)
        self._counts[key] += 1
        if self._counts[key] <= _MOST_ENTRIES:
            self._write(kind, **event.to_json())
        else:
            self._last[key] = event


def _stored(referrer: Referrer, output: Output) -> Frame | None:
    """The storing statement: outside of compiled code, or in a module's forward."""
    inside = (output.function,) if output.function else ()
    return assignment_site(referrer.path, (*inside, *output.producer))
