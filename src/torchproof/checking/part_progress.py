"""Tells which part of a check runs, and about how long the rest will take.

The estimate needs an earlier run of the same target with the same parts, and a part of
this run that has ended: the earlier times, scaled by how long that part took this time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torchproof.records import PartState, Run


class PartProgress:
    """The progress of a check: call it with a line, `enter` each part as it begins."""

    def __init__(
        self,
        parts: Iterable[str],
        earlier: Run | None,
        tell: Callable[[str], None],
        *,
        show: Callable[[PartState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = list(parts)
        self._earlier_s = _seconds(earlier) if earlier else {}
        self._tell, self._show = tell, show
        self._clock = clock
        self._took_s: dict[str, float] = {}
        self._part: str | None = None
        self._begun = 0.0

    def __call__(self, text: str) -> None:
        self._tell(text)

    def enter(self, part: str, limit_s: float | None = None) -> None:
        """`limit_s` is when the part ends at the latest."""
        now = self._clock()
        if self._part is not None:
            self._took_s[self._part] = now - self._begun
        self._part, self._begun = part, now
        number = self._parts.index(part)
        left_s = self._left(self._parts[number:])
        count = len(self._parts)
        self._show(PartState(part, number + 1, count, left_s, limit_s))

    def _left(self, rest: list[str]) -> float | None:
        """What these parts will take; None if a time or the scale is missing."""
        both = [name for name in self._took_s if self._earlier_s.get(name)]
        if not both or any(name not in self._earlier_s for name in rest):
            return None
        now_s = sum(self._took_s[name] for name in both)
        scale = now_s / sum(self._earlier_s[name] for name in both)
        return scale * sum(self._earlier_s[name] for name in rest)


def _seconds(run: Run) -> dict[str, float]:
    """What the parts of a run took; a part that did not apply took no time."""
    spent = {
        name: 0.0 if part.status == "skipped" else part.seconds
        for name, part in run.parts.items()
    }
    return {name: seconds for name, seconds in spent.items() if seconds is not None}
