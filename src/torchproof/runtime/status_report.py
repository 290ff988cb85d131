"""The records that `torchproof.status` returns, and their text.

They reference no tensors and no models, and `to_json` turns them into JSON.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from torchproof.records import JsonObject

# What calls run now. "partly compiled": after a fallback, some functions run eager.
State = Literal["not called", "compiling", "compiled", "partly compiled", "eager"]
_WORTH_NAMING_S = 10.0  # compile seconds from which `status` says if they pay off
WORTH_LOGGING_S = 30.0  # the same for the log
_SOON = 10_000  # calls within which compiling should pay off


@dataclass(frozen=True)
class Compilation:
    """One compilation of a function: the input sizes, the time, and why it recompiled.

    `in_child` counts the graphs whose code a child process generated. `kept` has, for
    each graph that no child could take, why this process generated its code. The code
    of other graphs came from a cache, or from a backend that generates none.
    """

    function: str
    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    cause: str | None = None
    in_child: int = 0
    kept: tuple[str, ...] = ()
    graphs: int = 0


FallbackKind = Literal[
    "agreement",
    "compile error",
    "deadline",
    "first run",
    "gain",
    "pack",
    "probe",
    "recipe",
    "storm",
    "unsupported",
    "verification",
]
FALLBACK_KINDS: tuple[FallbackKind, ...] = get_args(FallbackKind)


# Why a call, or a part of it, ran eager.
EagerReason = Literal[
    "compiling",  # code for it was being compiled, for this or another call
    "disabled",  # a setting of torch stopped compilation
    "fallback",  # something fell back: `fallbacks` has the reasons
    "no graph",  # there is nothing to compile in it
    "not recorded",  # no CUDA graph fitted it
    "raised",  # the model raised an error
    "recorded",  # it ran eager to find the blocks to compile
    "strategy",  # the strategy is eager
    "traced",  # torch.export, torch.jit or FX traced it
    "unsupported",  # forward-mode derivatives
    "verified",  # it was compared with eager, whose answer the caller got
]
_EAGER_TEXTS: dict[EagerReason, str] = {
    "compiling": "while compiling",
    "disabled": "because torch's compiler was switched off",
    "fallback": "after a fallback",
    "no graph": "without a graph",
    "not recorded": "without a recording",
    "raised": "that raised an error",
    "recorded": "to find the repeated blocks",
    "strategy": "by the strategy",
    "traced": "for another tracer",
    "unsupported": "with forward-mode derivatives",
    "verified": "to verify compiled code",
}


@dataclass(frozen=True)
class Fallback:
    """Something that runs eager instead of compiled, and why."""

    kind: FallbackKind
    what: str
    why: str
    phase: str | None = None
    seconds: float | None = None
    partial: bool = False  # calls that fit code compiled before run that code


def where_eager(item: Fallback) -> str:
    """Which calls a fallback concerns, if not all."""
    return " where its compiled code does not fit" if item.partial else ""


@dataclass(frozen=True)
class Totals:
    """Counts of everything so far; `Status` has only the latest 1,000 records.

    A stall is a call that waited for the compiler.
    """

    compilations: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)  # by kind
    stalls: int = 0
    stall_s: float = 0.0


@dataclass(frozen=True)
class Status:
    """The state of one compiled model; `why` gives the reason for its `strategy`."""

    model: str
    strategy: str
    why: str
    deadline_s: float  # infinite if there is none
    calls: int = 0
    compiled_calls: int = 0
    eager_calls: Mapping[EagerReason, int] = field(default_factory=dict)  # all others
    pending: tuple[str, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    # The places where compiled code runs plain Python; None if others compiled some.
    graph_breaks: int | None = 0
    recompiles: int = 0
    compile_s: float = 0.0
    fallbacks: tuple[Fallback, ...] = ()
    verifications: tuple[JsonObject, ...] = ()
    worth: JsonObject | None = None
    shares_code: bool = False  # calls run, or may run, code that another model compiled
    notes: tuple[str, ...] = ()
    disabled_by: str | None = None  # the setting that stops torch from compiling
    recipe: JsonObject | None = None  # its path, and whether it is followed
    graph: JsonObject | None = None  # the CUDA graph that replays whole calls
    pack: JsonObject | None = None  # its path, and which graphs it provided
    ranks: JsonObject | None = None  # what was decided with other ranks
    totals: Totals = field(default_factory=Totals)
    state: State = "eager"

    @property
    def graphs(self) -> int | None:
        """The compiled graphs, of recompilations too; None if others compiled some."""
        if self.shares_code:
            return None
        return sum(item.graphs for item in self.compilations)

    @property
    def reason(self) -> str:
        """What fell back last, and why; else why nothing runs compiled, or why the pack
        is not used; else the pack, or `why`.
        """
        if self.fallbacks:
            return _fallback(self.fallbacks[-1])
        if self.state == "eager" and self.strategy != "eager":
            why = self.disabled_by
            return nothing_compiled(why) if why else "no graph was captured"
        if self.pack is not None:
            used = f"pack {Path(self.pack['path']).name}"
            return used if self.pack["used"] else str(self.pack["why_not"])
        return self.why

    @property
    def compiled_share(self) -> float | None:
        return self.compiled_calls / self.calls if self.calls else None

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self) | {
            # JSON has no infinity.
            "deadline_s": self.deadline_s if math.isfinite(self.deadline_s) else None,
            "compiled_share": self.compiled_share,
            "graphs": self.graphs,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(status: Status) -> list[str]:
    lines = [f"{status.model}: {status.strategy} ({status.why})"]
    deadline = f"deadline {status.deadline_s:g} s"
    if math.isinf(status.deadline_s):
        deadline = "no deadline"
    lines.append(f"  {_calls(status)}, {deadline}")
    if status.recipe is not None:
        lines.append(f"  recipe {_recipe(status.recipe)}")
    if status.pack is not None:
        lines += [f"  {line}" for line in _pack(status.pack)]
    if status.graph is not None:
        lines += [f"  {line}" for line in status.graph["summary"]]
    if status.ranks is not None:
        lines += [f"  {line}" for line in _ranks(status.ranks)]
    lines += [f"  compiling {what}" for what in status.pending]
    lines += [f"  compiled {_compilation(item)}" for item in status.compilations]
    lines += [
        f"  eager: {_fallback(item)}"
        for item in status.fallbacks
        if item.why not in status.why  # the first line has it
    ]
    if (text := cost(status)) is not None:
        lines.append(f"  cost: {text}")
    lines += [f"  verified: {_verification(item)}" for item in status.verifications]
    if status.worth is not None:
        lines.append(f"  measured: {status.worth['summary']}")
    return lines + [f"  note: {note}" for note in status.notes]


def _calls(status: Status) -> str:
    share = status.compiled_share
    recompiles = _counted(status.recompiles, "recompile")
    compiled = "-" if share is None else f"{share:.0%}"
    reasons = [f"{n} {_EAGER_TEXTS[why]}" for why, n in status.eager_calls.items()]
    eager = f" (eager: {', '.join(reasons)})" if reasons else ""
    if status.compilations or status.shares_code:
        graphs = _counted(status.graphs, "graph")
        breaks = _counted(status.graph_breaks, "graph break")
        recompiles = f"{graphs}, {breaks}, {recompiles}"
    calls = _counted(status.calls, "call")
    seconds = f"{status.compile_s:.1f} s compiling"
    return f"{calls}, {compiled} compiled{eager}, {recompiles}, {seconds}"


def cost(status: Status) -> str | None:
    """What compiling has cost, and whether it pays off, as far as it was measured."""
    if status.compile_s < _WORTH_NAMING_S:
        return None
    spent = f"{status.compile_s:.1f} s compiling for {_counted(status.calls, 'call')}"
    times = _measured_ms(status)
    if times is None:
        return (
            f"{spent}; whether it pays off is unknown, because eager calls were not"
            " timed (min_gain= and example= time them)"
        )
    eager_ms, compiled_ms = times
    spent += f"; a call takes {compiled_ms:.3g} ms compiled, {eager_ms:.3g} ms eager"
    if compiled_ms >= eager_ms:
        return f"{spent}: it does not pay off"
    calls = math.ceil(status.compile_s * 1e3 / (eager_ms - compiled_ms))
    return f"{spent}: it pays off after {calls:,} calls"


def nothing_compiled(why: str | None) -> str:
    return f"nothing is compiled: {why}"


def cost_to_log(status: Status) -> str | None:
    """`cost`, unless compiled code is known to win it back within 10,000 calls."""
    times = _measured_ms(status)
    if times is not None and (times[0] - times[1]) * _SOON >= status.compile_s * 1e3:
        return None
    return cost(status)


def _measured_ms(status: Status) -> tuple[float, float] | None:
    """The times of an eager and of a compiled call; None if one was not measured."""
    if status.worth is not None:
        return status.worth["eager_ms"], status.worth["compiled_ms"]
    return None


def _counted(number: int | None, noun: str) -> str:
    if number is None:
        return f"- {noun}s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _recipe(item: JsonObject) -> str:
    name = item["path"] or "(a Recipe object)"
    run = f" of run {item['run']}" if item["run"] else ""
    words = {True: "followed", False: "not followed", None: "undecided"}
    parts = [words[item["followed"]]]
    if item["followed"] is None:  # else the first line has the reason
        parts.append(f"{item['why_not']}, unless it is moved before its first call")
    return f"{name}{run}: {'; '.join([*parts, *item['differs']])}"


def _pack(item: JsonObject) -> list[str]:
    ranks = [f"pack: {each}" for each in item["ranks"]]
    if not item["used"]:
        return [f"pack not used: {item['why_not']}", *ranks]
    if item["graphs"] is None:
        return [f"pack {item['path']}: {item['of']} graphs, not warmed up", *ranks]
    lines = [
        f"pack {item['path']}: {item['graphs']} of {item['of']} graphs from its caches"
        f" in {item['seconds']:.1f} s"
    ]
    if item["untraced"]:
        lines.append(f"pack: calls without tracing: {len(item['untraced'])}")
    lines += [f"pack differs: {each}" for each in item["differs"]]
    lines += [f"not from the pack: {each}" for each in item["misses"]]
    return lines + [f"pack: {each}" for each in item["notes"]] + ranks


def _ranks(item: JsonObject) -> list[str]:
    who = f"rank {item['rank']} of {item['world_size']}"
    peers = ", ".join(map(str, item["decides_with"]))
    if peers:
        how = f"decides with rank {peers}"
    else:
        how = "decides alone: its compiled code contains no collective"
    return [f"{who} {how}", *(f"decided: {each}" for each in item["decisions"])]


def _compilation(item: Compilation) -> str:
    sizes = ", ".join(
        f"{name} {'x'.join(map(str, shape)) or 'scalar'}"
        for name, shape in item.shapes.items()
    )
    text = item.function + (f" for {sizes}" if sizes else "")
    text += f" in {item.seconds:.1f} s"
    if item.kept:
        why = "; ".join(item.kept)
        text += f", in this process, where only passes check the deadline ({why})"
    return text + (f"; again because {item.cause}" if item.cause else "")


def _fallback(item: Fallback) -> str:
    text = f"{item.what}{where_eager(item)}: {item.kind}"
    if item.seconds is not None:
        text += f" after {item.seconds:.1f} s"
    if item.phase:
        text += f", in {item.phase}"
    return f"{text}: {item.why}"


def _verification(item: JsonObject) -> str:
    where = f" at {item['where']}" if item.get("where") else ""
    why = f": {item['why']}" if item.get("why") else ""
    return f"{item['verdict']}{where}{why}"
