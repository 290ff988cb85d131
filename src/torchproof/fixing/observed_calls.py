"""What a probe in the source recorded, as the parent reads it."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.records import Record


@dataclass(frozen=True)
class ObservedCall(Record):
    """One call of a probe in eager mode."""

    number: int | None = None  # of a place whose variables it recorded
    data: tuple[str, ...] = ()  # the variables there that are numbers and texts
    problem: str | None = None  # why the function cannot run outside the graph
