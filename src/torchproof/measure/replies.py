"""What a strategy worker replies, and what is known about a strategy at one shape.

Each command of the worker returns one of these records, or nothing. On several ranks,
`joined` makes one reply of all: each field says how, or is that of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from torchproof.observe import BreakCosts
from torchproof.records import (
    Frame,
    JsonObject,
    MissingHook,
    Record,
    StaleAnswerEvent,
    TorchConfig,
    UserError,
    WrongAnswerEvent,
    shapes,
    stats,
)
from torchproof.strategies import NotApplicable

# The errors that the parent raises as they were raised in the worker, special ones
# first.
USER_ERRORS = (NotApplicable, MissingHook, UserError)
Reply = TypeVar("Reply", bound=Record)
Join = Callable[[Sequence[Any]], Any]


def joined(replies: Sequence[Reply]) -> Reply:
    """One reply for those of all ranks."""
    if len(replies) == 1:
        return replies[0]
    first: Any = replies[0]  # a dataclass, which `Record` alone is not
    joins = {item.name: item.metadata.get("join") for item in fields(first)}
    changes = {
        name: join([getattr(reply, name) for reply in replies])
        for name, join in joins.items()
        if join is not None
    }
    whole: Reply = replace(first, **changes)
    return whole


def _by(join: Join, default: Any = None) -> Any:
    """A field whose values on several ranks are joined so."""
    return field(default=default, metadata={"join": join})


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value), None)


def _largest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _all_known(values: Sequence[bool | None]) -> bool | None:
    return None if None in values else all(values)


def _chained(values: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(item for each in values for item in each)


def _distinct(values: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(_chained(values)))


def _of_each(join: Join) -> Join:
    """Joins the items at the same index; the ranks have equally many."""
    return lambda values: tuple(map(join, zip(*values, strict=True)))


def _slowest(phases: Sequence[Mapping[str, float] | None]) -> Any:
    known = [each for each in phases if each is not None]
    return max(known, key=lambda each: each["total"]) if known else None


def _largest_of_each(values: Sequence[Mapping[str, int | None] | None]) -> Any:
    known = [each for each in values if each]
    if not known:
        return None
    return {name: _largest(each.get(name) for each in known) for name in known[0]}


def _memory_in_use(values: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Ranks share the memory of the machine; each has a device of its own."""
    host, cuda = ([each[name] for each in values if each] for name in ("host", "cuda"))
    return {"host": sum(host), "cuda": max(cuda, default=0)}


def _total_work(values: Sequence[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    """The work of all ranks together, if they count it in the same unit."""
    known = [work for work in values if work is not None]
    if len(known) < len(values) or len({unit for _, unit in known}) != 1:
        return None
    return sum(amount for amount, _ in known), known[0][1]


def _worst(values: Sequence[shapes.Numerics | None]) -> shapes.Numerics | None:
    """The worst verdict; it names the rank unless all ranks agree that it is right."""
    known = [found for found in values if found is not None]
    if not known:
        return None
    verdicts = ("same", "rounding", None, "wrong")

    def badness(rank: int) -> tuple[int, float]:
        found = known[rank]
        return verdicts.index(found["verdict"]), found.get("max_rel_error") or 0.0

    worst = max(range(len(known)), key=badness)
    found: shapes.Numerics = {**known[worst], "rank": worst}
    if found["verdict"] not in ("same", "rounding"):
        found["why"] = f"on rank {worst}: {found.get('why') or 'no reason is known'}"
    return found


def _all_lookups(values: Sequence[CacheUse | None]) -> CacheUse | None:
    known = [use for use in values if use is not None]
    return joined(known) if known else None


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
    lookups: tuple[Lookup, ...] = _by(_chained, ())
    filled_before: str | None = _by(_first)  # a folder with files of earlier processes


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

    environment: shapes.Environment = field(default_factory=shapes.Environment)
    function: Frame | None = None
    compiled: bool = _by(any, False)  # the target calls torch.compile itself
    draws: bool = _by(any, False)  # random numbers
    stateful: bool = _by(any, False)  # later shape: passes at the first change tensors
    deterministic: bool | None = _by(_all_known)
    not_exact: str | None = _by(_first)
    work: tuple[Any, ...] | None = _by(_total_work)  # amount and unit
    host_copies: str | None = _by(_first)
    operations: Operations | None = None


@dataclass(frozen=True)
class SampledRound(Record):
    """The passes of one round, in order; `interrupted` as `stats.uninterrupted`."""

    times_ms: tuple[float, ...] = _by(_of_each(max), ())
    interrupted: tuple[bool, ...] = _by(_of_each(any), ())
    compilations: int = _by(max, 0)
    by_rank: tuple[tuple[float, ...], ...] = _by(_chained, ())  # times of each rank

    @property
    def clean_ms(self) -> tuple[float, ...]:
        """The samples that its median is of."""
        return tuple(stats.uninterrupted(self.times_ms, self.interrupted))


@dataclass(frozen=True)
class Replayed(Record):
    """How many passes were equal, bit by bit, and what differed in the next one."""

    equal: int
    differs: str | None = None


@dataclass(frozen=True)
class Lookups(Record):
    """The time of a call's lookups of guards: the median and the quartiles."""

    us: float
    range_us: tuple[float, float]


@dataclass(frozen=True)
class Kernels(Record):
    """The kernels of a call on a GPU."""

    per_step: float
    kernel_ms: float
    generated_ms: float  # of those that Inductor generated


# Objects from before the warm-up's end are frozen: a full collection skips them.
FROZEN = "on, without objects from before the timing"


@dataclass(frozen=True)
class Facts(Record):
    """Everything that is known about a strategy at one shape.

    The worker replies to most commands with one that has what it has found out. The
    session brings them together and adds the rounds.
    """

    # The compiler: None if nothing could compile.
    compile_s: Mapping[str, float] | None = _by(_slowest)  # by phase
    counts: shapes.Counts | None = None
    cache: CacheUse | None = field(default=None, metadata={"join": _all_lookups})
    rank_counts: tuple[shapes.Counts, ...] = _by(_chained, ())  # if several
    # The first pass over the calls, which compiles.
    first_call_s: float | None = _by(_largest)
    first_compile_s: Mapping[str, float] | None = _by(_slowest)
    imports_s: float | None = _by(_largest)
    bytes: Mapping[str, int] = field(
        default_factory=dict, metadata={"join": _memory_in_use}
    )
    fell_back: tuple[str, ...] = _by(_distinct, ())  # why a CUDA graph was not replayed
    source: str = ""
    notes: tuple[str, ...] = ()
    switches: TorchConfig = field(default_factory=dict)
    compiled_before: int = _by(max, 0)
    plan: JsonObject | None = None
    # The warm-up and the timing.
    steady: bool = _by(all, True)
    pass_ms: float = _by(max, 0.0)
    rounds: tuple[tuple[SampledRound, ...], ...] = ()  # by repeat
    compilations: int = 0  # while it was timed
    collector: str = FROZEN  # the garbage collector while it was timed
    longer: str = stats.LONGER  # how to get more samples
    # Its outputs.
    numerics: shapes.Numerics | None = field(default=None, metadata={"join": _worst})
    drawn: shapes.Numerics | None = None  # with eager's random numbers
    # After the timing.
    memory: Mapping[str, int | None] | None = _by(_largest_of_each)
    lookups: Lookups | None = None  # of guards
    kernels: Kernels | None = None
    # Unchecked guards by type; a text where torch does not list them.
    dropped: Mapping[str, int] | str | None = None
    sharing: tuple[str, ...] = ()
    break_costs: BreakCosts | None = None
    # On request.
    probe: shapes.Probe | None = None  # of the target in eager, for `tune`
    wrong: tuple[WrongAnswerEvent, ...] = ()  # why its outputs differ
    stale: tuple[StaleAnswerEvent, ...] = ()

    @property
    def later_compile_s(self) -> float | None:
        """The seconds of compilation in calls after the first one."""
        if not self.compile_s or not self.first_compile_s:
            return None
        return self.compile_s["total"] - self.first_compile_s["total"]

    def updated(self, reply: Facts) -> Facts:
        """With what a later reply has found out."""
        unknown = Facts()
        pairs = {each.name: getattr(reply, each.name) for each in fields(Facts)}
        found = {k: v for k, v in pairs.items() if v != getattr(unknown, k)}
        return replace(self, **found)

    def without_rounds(self) -> Facts:
        return replace(self, rounds=())

    def with_repeat(self) -> Facts:
        """With an empty repeat, which the following rounds belong to."""
        return replace(self, rounds=(*self.rounds, ()))

    def sampled(self, reply: SampledRound) -> Facts:
        """With another round of the latest repeat."""
        *earlier, latest = self.rounds
        compilations = self.compilations + reply.compilations
        rounds = (*earlier, (*latest, reply))
        return replace(self, rounds=rounds, compilations=compilations)

    @property
    def verdict(self) -> str | None:
        return (self.numerics or {}).get("verdict")
