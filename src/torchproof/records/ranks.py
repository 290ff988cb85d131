"""The records of a run with several ranks: what each rank did, and where they differ.

Times in seconds count from the first moment that any rank was observed, on one clock
for all ranks. Steps and calls count from 0; `nth` counts from 1. What was not observed
is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchproof.records.mappings import JsonObject
from torchproof.records.schema import Integer, Record

RankEventKind = Literal[
    "compile",  # Dynamo traced a function, and what it called
    "break",
    "collective",
    "gc",
    "step",  # a step of the program, from its begin to the next
    "wrap",  # DDP or FSDP was applied to a module
]
RankOutcome = Literal["finished", "failed", "killed", "hung"]
WrapOrder = Literal["compiled_first", "wrapped_first"]
DifferenceKind = Literal[
    "recompile",  # some ranks compiled a function again and the others did not
    "function",  # a function that some ranks compiled and the others never did
    "graph",  # the graphs of a function, compiled in the same step, are not the same
    "break",
    "cache",  # compiled anew on some ranks, and loaded from a cache on others
    "collectives",  # collectives inside the graph of some ranks only
    "eager",  # a rank that ran no compiled code
]
WaitCause = Literal["compile", "gc", "slow", "ended", "unknown"]


@dataclass(frozen=True)
class RankEvent(Record):
    """Something that a rank did, with its time.

    `function` is the qualified name of the compiled function; of a collective its name,
    such as `all_reduce`; of a wrap `DistributedDataParallel` or `fully_shard`. `file`
    and `line` are the user's: of the compiled function, the break, the call.
    """

    kind: RankEventKind
    start_s: float
    seconds: float | None = None  # None: it had not ended when the rank did
    step: int | None = None
    function: str = ""
    file: str | None = None
    line: int | None = None
    resumed_at: int | None = None  # of a compile: the line after a break it starts at
    backward: bool = False  # a compile of the backward graph, with the forward's id
    # Of a compile or break: its number on this rank, for this function. Of a
    # collective: its number in its process group.
    nth: int | None = None
    call: int | None = None  # of the compiled function
    compile_id: str | None = None  # `1/2`, as in torch's own logs
    reason: str | None = None  # the failed guard of a recompile, or why it breaks
    graph: str | None = None  # a hash of the operations that were traced
    sizes: Mapping[str, str] = field(default_factory=dict, hash=False)  # x: 8x128
    dynamic: tuple[str, ...] = ()  # sizes that the graph leaves open: `x.size(0)`
    cached: bool | None = None  # whether the compiled code came from a cache
    collectives: tuple[str, ...] = ()  # inside the graph
    group: str | None = None  # the process group of a collective
    members: tuple[int, ...] = ()  # its ranks; empty: all
    order: WrapOrder | None = None  # of a wrap


@dataclass(frozen=True)
class Rank(Record):
    """One process of a distributed run."""

    rank: int
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    outcome: RankOutcome = "finished"
    # Negative for a process that a signal killed; None: it did not end by itself.
    exit_code: Annotated[int | None, Integer | None] = None
    error: str | None = None  # one line: why it failed
    first_seen_s: float | None = None
    last_seen_s: float | None = None  # the last entry of its stream
    activity: str | None = None  # the last: `compiling forward (model.py:12)`
    steps: int | None = None
    calls: int | None = None  # outermost calls of compiled code
    compiled_calls: int | None = None  # of them, those in which a graph ran
    events: tuple[RankEvent, ...] = ()  # in the order of their begin
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class FunctionOnRank(Record):
    """What one rank did for one compiled function."""

    rank: int
    compiles: int = 0
    recompiles: int = 0
    breaks: int = 0
    cached: int | None = None  # compiles that a cache served; None: not known
    graphs: tuple[str | None, ...] = ()  # one hash for each compile
    seconds: float | None = None  # of all compiles that ended
    unfinished: bool = False  # a compile had not ended when the rank did


@dataclass(frozen=True)
class CompiledFunctionRow(Record):
    """A compiled function on all ranks; `differs` names the columns that differ."""

    function: str
    file: str | None = None
    line: int | None = None
    resumed_at: int | None = None  # the line after a break at which it begins
    ranks: tuple[FunctionOnRank, ...] = ()
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankDifference(Record):
    """Something that `ranks` did and the `others` did not, at the same place."""

    kind: DifferenceKind
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    function: str = ""
    file: str | None = None
    line: int | None = None
    nth: int | None = None
    step: int | None = None
    call: int | None = None
    reason: str | None = None
    seconds: float | None = None  # what it took, on the slowest of `ranks`
    waited_s: float | None = None  # what the rank that waited longest waited for it
    waiting: tuple[int, ...] = ()
    compile_ids: tuple[str | None, ...] = ()  # one for each of `ranks`
    # Of a recompile: ranks whose first graph left sizes open that these fixed.
    dynamic_on: tuple[int, ...] = ()
    other: JsonObject = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class RankWait(Record):
    """Ranks that waited in a collective for the one that came last."""

    collective: str
    late: int  # the rank that came last, or never
    waiting: tuple[int, ...]
    start_s: float  # when the first of them arrived
    seconds: float  # the longest wait
    cause: WaitCause = "unknown"
    text: str = ""  # `compiling forward (model.py:12)`
    cause_s: float | None = None  # how much of the wait the cause explains
    compile_id: str | None = None  # of the late rank, if the cause is a compile
    nth: int | None = None
    group: str | None = None
    step: int | None = None
    ended: bool = True  # False: the late rank never came
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class CollectiveTimeout(Record):
    """A collective that ended in an error because ranks did not come.

    `activities` has one text for each of the missing ranks: what it did then; the
    compile id is None if it was not compiling.
    """

    collective: str
    ranks: tuple[int, ...]  # that waited
    missing: tuple[int, ...]
    activities: tuple[str, ...] = ()
    compile_ids: tuple[str | None, ...] = ()
    nth: int | None = None
    group: str | None = None
    step: int | None = None
    start_s: float | None = None
    seconds: float | None = None  # from the first arrival to the error
    error: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class RankRun(Record):
    """A run with several ranks, compared."""

    world_size: int
    launcher: str = ""  # the command that started the ranks
    ranks: tuple[Rank, ...] = ()
    functions: tuple[CompiledFunctionRow, ...] = ()
    differences: tuple[RankDifference, ...] = ()
    waits: tuple[RankWait, ...] = ()  # the longest first
    timeout: CollectiveTimeout | None = None
    notes: tuple[str, ...] = ()  # what could not be observed, and why
    other: JsonObject = field(default_factory=dict, hash=False)


_Group = tuple[str | None, tuple[int, ...]]  # a process group, and its members


def collectives_of(
    ranks: Iterable[Rank],
) -> tuple[
    dict[tuple[_Group, int], dict[int, RankEvent]], dict[tuple[int, _Group], int]
]:
    """The events of each collective by rank, and the newest number of each rank."""
    arrivals: dict[tuple[_Group, int], dict[int, RankEvent]] = {}
    newest: dict[tuple[int, _Group], int] = {}
    for rank in ranks:
        for event in rank.events:
            if event.kind == "collective" and event.nth is not None:
                group = event.group, event.members
                arrivals.setdefault((group, event.nth), {})[rank.rank] = event
                own = rank.rank, group
                newest[own] = max(newest.get(own, 0), event.nth)
    return arrivals, newest


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0 and 2`, `ranks 0-2 and 4-7`."""
    every = sorted(set(ranks))
    if len(every) <= 1:
        return f"rank {every[0]}" if every else "no rank"
    rows: list[list[int]] = []
    for rank in every:
        if rows and rank == rows[-1][-1] + 1:
            rows[-1].append(rank)
        else:
            rows.append([rank])
    words = [
        word
        for row in rows
        for word in ([f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row))
    ]
    *most, last = words
    return f"ranks {', '.join(most)} and {last}" if most else f"ranks {last}"
