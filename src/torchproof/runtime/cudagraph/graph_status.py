"""The status of a graphed step as plain records, for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from torchproof.records import JsonObject

StopKind = Literal[
    "host_sync", "python", "numerics", "memory", "input", "capture", "recipe"
]


@dataclass(frozen=True)
class Stop:
    """A reason why a step is not replayed, with the source line that causes it."""

    kind: StopKind
    reason: str
    operation: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    library: str | None = None  # the library's file and line below the user's line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file else ""
        operation = f" ({self.operation})" if self.operation else ""
        within = f", in {self.library}" if self.library else ""
        return f"{place}{self.reason}{operation}{within}"


class Stopped(Exception):
    """The step cannot be recorded, or the recording must not be used."""

    def __init__(self, *stops: Stop) -> None:
        super().__init__("; ".join(map(str, stops)))
        self.stops = stops


class ChangesState(Stopped):
    """The step changes Python state. It may do so at its first call only."""


class RecordLater(Exception):
    """The first call behaves differently, so a later call is recorded."""


@dataclass(frozen=True)
class Bucket:
    """One recording: its shapes, replays, memory and comparison with eager."""

    shapes: tuple[str, ...]
    replays: int
    pool_bytes: int | None  # growth of the pool during the recording
    record_s: float
    verdict: str  # comparison with eager: same, rounding or random
    error: float | None  # the largest relative error

    def __str__(self) -> str:
        memory = f", {_mib(self.pool_bytes)}" if self.pool_bytes is not None else ""
        return (
            f"{' '.join(self.shapes)}: {self.replays} replays, recorded in"
            f" {self.record_s:.2f} s{memory}, vs. eager {self.verdict}"
        )


@dataclass(frozen=True)
class Rung:
    """How calls of some shapes run that cannot be recorded as a whole."""

    shapes: tuple[str, ...]
    # "graph per compiled piece", "compiled" or "eager"; None: as the step was prepared,
    # because no other way was proved
    way: str | None
    why: str  # what prevented a recording
    seconds: dict[str, float | None]  # of a call, for each way that was tried
    refusals: tuple[str, ...]  # why ways are not used

    def __str__(self) -> str:
        others = ", ".join(
            f"{way} {'-' if seconds is None else f'{1e3 * seconds:.3g} ms'}"
            for way, seconds in self.seconds.items()
        )
        tried = f" ({others})" if others else ""
        first = f"{' '.join(self.shapes)} runs {self.way or 'unrecorded'}{tried}"
        return "\n".join([first, *(f"not used: {each}" for each in self.refusals)])


@dataclass
class StageStatus:
    """One stage on the way to compiled code, for one recording (`wait=False`)."""

    strategy: str
    shapes: tuple[str, ...]
    # waiting, compiling, in use, replaced, not faster, failed or ended
    state: str = "waiting"
    compile_s: float | None = None  # in the compile process
    pause_s: float | None = None  # the longest that a call waited for this stage
    at_s: float | None = None  # when it took over, in seconds since `torchproof.graph`
    at_call: int | None = None  # the first call that it answered
    step_ms: float | None = None  # a replay on the device
    gain: float | None = None  # how many times faster than the recording before
    why: str | None = None  # why it failed

    def __str__(self) -> str:
        figures = {
            "compiled in {:.1f} s": self.compile_s,
            "longest pause {:.2f} s": self.pause_s,
            "after {:.1f} s": self.at_s,
            "{:.3g} ms": self.step_ms,
            "{:.2f}x": self.gain,
        }
        parts = [self.state] if self.why is None else [self.state, self.why]
        parts += [
            text.format(each) for text, each in figures.items() if each is not None
        ]
        return f"{self.strategy} {' '.join(self.shapes)}: {', '.join(parts)}"


@dataclass
class Padded:
    """The calls that were padded to one size; work is the product of a size."""

    size: tuple[int, ...]
    calls: int = 0
    useful_work: int = 0
    waste: float | None = None  # the work on padding relative to the useful work

    def __str__(self) -> str:
        waste = "" if self.waste is None else f", waste {self.waste:.1%}"
        return f"padded to {'x'.join(map(str, self.size))}: {self.calls} calls{waste}"


@dataclass(frozen=True)
class Status:
    """How the calls so far ran."""

    strategy: str
    calls: int
    replays: int
    plain_calls: int  # calls without a graph
    recordings: int
    pool_bytes: int | None
    buckets: tuple[Bucket, ...]
    padding: tuple[Padded, ...]  # the sizes that calls are padded to
    stops: tuple[Stop, ...]
    changes: tuple[str, ...]  # changes of external state that caused a new recording
    notes: tuple[str, ...]
    stages: tuple[StageStatus, ...] = ()  # with `wait=False`
    rungs: tuple[Rung, ...] = ()  # how calls without a recording run

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.strategy} + graph: {self.replays} of {self.calls} calls replayed,"
            f" {self.recordings} recordings, pool {_mib(self.pool_bytes)}"
        ]
        lines += map(str, (*self.buckets, *self.stages, *self.padding))
        lines += [f"not replayed: {stop}" for stop in self.stops]
        lines += map(str, self.rungs)
        lines += [f"recorded again: {change}" for change in self.changes]
        lines += self.notes
        return "\n".join(lines)


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.1f} MiB"
