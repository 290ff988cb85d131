"""What is known about a graphed step: plain records, for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

StopKind = Literal[
    "host_sync", "python", "numerics", "memory", "input", "capture", "recipe"
]


@dataclass(frozen=True)
class Stop:
    """Why a step is not replayed: what stops it, and the line that does it."""

    kind: StopKind
    reason: str
    operation: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    library: str | None = None  # file and line of a library that the user's line calls

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        operation = f" ({self.operation})" if self.operation else ""
        within = f", in {self.library}" if self.library else ""
        return f"{place}{self.reason}{operation}{within}"


class Stopped(Exception):
    """A recording that cannot be made, or must not be used."""

    def __init__(self, *stops: Stop) -> None:
        super().__init__("; ".join(map(str, stops)))
        self.stops = stops


class RecordLater(Exception):
    """The step does something else at its first call: it is recorded at a later one."""


@dataclass(frozen=True)
class Bucket:
    """One recording: for which shapes, how often replayed, how much memory it took."""

    shapes: tuple[str, ...]
    replays: int
    pool_bytes: int | None  # that the pool grew by when this was recorded
    record_s: float
    verdict: str  # against eager: same, rounding, random, not compared
    error: float | None  # largest, relative


@dataclass(frozen=True)
class Status:
    """What became of the calls so far."""

    strategy: str
    calls: int
    replays: int
    plain_calls: int  # that ran without a graph
    recordings: int
    pool_bytes: int | None
    clones: int
    cloned_bytes: int
    buckets: tuple[Bucket, ...]
    padding: (
        dict[str, Any] | None
    )  # buckets with hits and waste, where calls are padded
    stops: tuple[Stop, ...]
    changes: tuple[str, ...]  # what was noticed and led to another recording
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.strategy} + graph: {self.replays} of {self.calls} calls replayed,"
            f" {self.recordings} recordings, pool {_mib(self.pool_bytes)}"
        ]
        if self.buckets:
            rows = [("shapes", "replays", "pool", "record", "against eager")]
            rows += [
                (
                    " ".join(each.shapes),
                    str(each.replays),
                    _mib(each.pool_bytes),
                    f"{each.record_s:.2f} s",
                    each.verdict,
                )
                for each in self.buckets
            ]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                cells = zip(row, widths, strict=True)
                lines.append("  ".join(c.ljust(w) for c, w in cells).rstrip())
        if self.padding is not None:
            lines += _padded(self.padding)
        lines += [f"not replayed: {stop}" for stop in self.stops]
        lines += [f"recorded again: {change}" for change in self.changes]
        lines += self.notes
        return "\n".join(lines)


def _padded(told: dict[str, Any]) -> list[str]:
    """One line a bucket, and one for all of them."""
    lines = [
        f"padded to {'x'.join(map(str, each['size']))}: {each['hits']} calls, waste"
        f" {_percent(each['waste'])}"
        for each in told["buckets"]
    ]
    left = sum(each["calls"] for each in told["left_out"])
    return [*lines, f"waste {_percent(told['waste'])}; {left} calls fit no bucket"]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.1f} MiB"
