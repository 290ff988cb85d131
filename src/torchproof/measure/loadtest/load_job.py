"""What the parent asks of the process of a strategy, and what it replies, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchproof.measure.loadtest.served_strategy import ServedStrategy
from torchproof.measure.loadtest.timetable import CallKind
from torchproof.records import Record, Stall, shapes
from torchproof.records.load_options import LoadOptions
from torchproof.targets import Job


@dataclass(frozen=True)
class LoadJob(Record):
    """What the process of a strategy serves, and how."""

    run: Job
    served: ServedStrategy
    options: LoadOptions
    sized: tuple[CallKind, ...] = ()  # calls with other sizes, after the target's own


@dataclass(frozen=True)
class ServedTarget(Record):
    """The target as this process has it, ready to be called."""

    calls: tuple[str, ...]  # each call in words
    weights: tuple[float, ...]  # of the target's own calls
    start_s: float
    environment: shapes.Environment
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServingReply(Record):
    """What the process knows about a timetable besides the log of requests."""

    errors: Mapping[str, int] = field(default_factory=dict)
    stalls: tuple[Stall, ...] | None = None  # None: the process did not reply
    missing: Mapping[str, str] = field(default_factory=dict)
    peak_bytes: int | None = None
