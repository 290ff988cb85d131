"""What a strategy worker replies, and what is known about a strategy at one shape.

Each command of the worker returns one of these records, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof.observe import BreakCosts
from torchproof.records import Record, stats


@dataclass(frozen=True)
class Done(Record):
    """The reply to a command without a result."""


@dataclass(frozen=True)
class Lookup(Record):
    """A lookup in a cache of torch; `own` if this process had stored the graph."""

    cache: str
    hit: bool
    own: bool


@dataclass(frozen=True)
class CacheUse(Record):
    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    saved: int = 0  # in AOTAutograd's cache
    lookups: tuple[Lookup, ...] = ()
    filled_before: str | None = None  # a cache folder with files of an earlier process


@dataclass(frozen=True)
class Operations(Record):
    """Floating-point operations of a call in eager, by the type they ran in."""

    by_type: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    not_counted: tuple[str, ...] = ()  # operations without a formula
    why: str | None = None  # they could not be counted


@dataclass(frozen=True)
class Reference(Record):
    """Facts about the target in eager."""

    environment: Mapping[str, Any] = field(default_factory=dict)
    function: tuple[Any, ...] = ()  # file, line and name
    compiled: bool = False  # the target calls torch.compile itself
    draws: bool = False  # random numbers
    stateful: bool = False  # at a later shape: passes at the first change tensors
    deterministic: bool | None = None
    not_exact: str | None = None
    work: tuple[Any, ...] | None = None  # amount and unit
    host_copies: str | None = None
    operations: Operations | None = None


@dataclass(frozen=True)
class OutputComparison(Record):
    numerics: Mapping[str, Any]


@dataclass(frozen=True)
class SampledRound(Record):
    times_ms: tuple[float, ...]
    interrupted: tuple[bool, ...]
    compilations: int
    by_rank: tuple[tuple[float, ...], ...] = ()  # times of each of several ranks


@dataclass(frozen=True)
class Replayed(Record):
    """How many passes were equal, bit by bit, and what differed in the next one."""

    equal: int
    differs: str | None = None


@dataclass(frozen=True)
class Diagnosis(Record):
    events: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Probed(Record):
    probe: Mapping[str, Any]


@dataclass(frozen=True)
class Switches(Record):
    switches: Mapping[str, Any]


Rounds = tuple[tuple[tuple[float, ...], ...], ...]


# Objects from before the warm-up's end are frozen: a full collection skips them.
FROZEN = "on, without objects from before the timing"


# What each command of the worker finds out.
_WARM_UP = ("steady", "pass_ms")
_COMPILED = ("compile_s", "counts", "cache", "rank_counts", "fell_back")
_AFTER_TIMING = (*_COMPILED, "memory", "profile", "dropped", "sharing", "break_costs")


@dataclass(frozen=True)
class Facts(Record):
    """Everything that is known about a strategy at one shape.

    The worker replies with one after its first pass, after its warm-up and after the
    timing, each with what it has found out. The session adds rounds and comparisons.
    """

    # The compiler: None if nothing could compile.
    compile_s: Mapping[str, float] | None = None  # by phase
    counts: Mapping[str, Any] | None = None
    cache: CacheUse | None = None
    rank_counts: tuple[Mapping[str, Any], ...] = ()  # of each of several ranks
    # The first pass over the calls, which compiles.
    first_call_s: float | None = None
    first_compile_s: Mapping[str, float] | None = None
    imports_s: float | None = None
    bytes: Mapping[str, int] = field(default_factory=dict)
    fell_back: tuple[str, ...] = ()  # why a CUDA graph was not replayed
    source: str = ""
    notes: tuple[str, ...] = ()
    switches: Mapping[str, Any] = field(default_factory=dict)
    compiled_before: int = 0
    plan: Mapping[str, Any] | None = None
    # The warm-up and the timing.
    steady: bool = True
    pass_ms: float = 0.0
    rounds: Rounds = ()  # by repeat
    tail_rounds: Rounds = ()  # of all samples, also by repeat
    compilations: int = 0  # while it was timed
    steps: int = 0
    interrupted: int = 0
    collector: str = FROZEN  # the garbage collector while it was timed
    longer: str = stats.LONGER  # how to get more samples
    by_rank: tuple[tuple[float, ...], ...] = ()  # all times of each of several ranks
    # Its outputs.
    numerics: Mapping[str, Any] | None = None
    drawn: Mapping[str, Any] | None = None  # with eager's random numbers
    # After the timing.
    memory: Mapping[str, int | None] | None = None
    profile: Mapping[str, Any] | None = None
    dropped: Any = None  # unchecked guards by type, or a text
    sharing: tuple[str, ...] = ()
    break_costs: BreakCosts | None = None

    @property
    def later_compile_s(self) -> float | None:
        """The seconds of compilation in calls after the first one."""
        if not self.compile_s or not self.first_compile_s:
            return None
        return self.compile_s["total"] - self.first_compile_s["total"]

    def after_warm_up(self, reply: Facts) -> Facts:
        return replace(self, **{name: getattr(reply, name) for name in _WARM_UP})

    def after_timing(self, reply: Facts) -> Facts:
        return replace(self, **{name: getattr(reply, name) for name in _AFTER_TIMING})

    def without_rounds(self) -> Facts:
        return replace(
            self, rounds=(), tail_rounds=(), by_rank=(), steps=0, interrupted=0
        )

    def with_repeat(self) -> Facts:
        """With an empty repeat, which the following rounds belong to."""
        tails = (*self.tail_rounds, ())
        return replace(self, rounds=(*self.rounds, ()), tail_rounds=tails)

    def sampled(self, reply: SampledRound) -> Facts:
        """With another round of the latest repeat."""
        times_ms = list(reply.times_ms)
        clean = stats.uninterrupted(times_ms, list(reply.interrupted))
        *earlier, latest = self.rounds
        *earlier_tails, latest_tails = self.tail_rounds
        before = self.by_rank or ((),) * len(reply.by_rank)
        pairs = zip(before, reply.by_rank, strict=True)
        return replace(
            self,
            by_rank=tuple((*times, *more) for times, more in pairs),
            rounds=(*earlier, (*latest, tuple(clean))),
            tail_rounds=(
                *earlier_tails,
                (*latest_tails, tuple(stats.tail_of(times_ms))),
            ),
            compilations=self.compilations + reply.compilations,
            steps=self.steps + len(reply.interrupted),
            interrupted=self.interrupted + sum(reply.interrupted),
        )

    @property
    def verdict(self) -> str | None:
        return (self.numerics or {}).get("verdict")
