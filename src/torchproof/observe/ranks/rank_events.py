"""Turns the stream of one rank into its record: what it did, and when.

Takes the entries of the stream and the observation that `capture` makes of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof.observe.gathering import AROUND_CALLABLES
from torchproof.process import Entry, describe
from torchproof.records import (
    INPUT,
    BreakEvent,
    Frame,
    GuardEvent,
    JsonObject,
    Observation,
    Rank,
    RankEvent,
    RankOutcome,
    WrapOrder,
    definition,
    one_line,
    qualified_name,
    resumed_at,
    whose,
)

# The operations of functional collectives in a graph, as Dynamo and users call them.
_COLLECTIVE_WORDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "barrier",
)
_CACHES = (
    "inductor_fx_local_cache",
    "inductor_fx_remote_cache",
    "aotautograd_local_cache",
    "aotautograd_remote_cache",
)
# Inputs of a graph that are the state of a module, by their names in the graph.
_STATE = re.compile(r"_(modules|parameters|buffers)_")
RUNNING = "running"  # an activity of which nothing more is known
_OUTCOMES: dict[str, RankOutcome] = {
    "timeout": "hung",
    "interrupted": "killed",
    "stopped": "killed",
}


@dataclass
class _Compile:
    """A compilation, as far as the stream tells."""

    compile_id: str
    began: float  # on the common clock, as all times here
    function: Frame
    call: int | None
    seconds: float | None = None
    has_ended: bool = False
    cached: bool | None = None
    traced_sizes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rows: Sequence[Sequence[Any]] = ()  # the operations of its graph


class RankReader:
    """Reads the stream of one rank; `origin` is the wall time that counts as 0."""

    def __init__(self, entries: Sequence[Entry], origin: float) -> None:
        self._entries = entries
        self._first = entries[0]
        self._origin = origin
        self._strings: dict[int, str] = {}
        self._compiles: dict[str, _Compile] = {}
        self._backwards: list[RankEvent] = []
        self._steps = self._read_steps()
        self._collectives = self._read_collectives()
        self._read_compiles()

    def record(self, observation: Observation, ending: str) -> Rank:
        """The record of the rank; `ending` says how the launch ended."""
        first = self._first
        end = next((e for e in reversed(self._entries) if e["kind"] == "rank_end"), {})
        outcome = _outcome(end, observation, ending)
        alive = [e for e in self._entries if e["kind"] != "rank_end"]
        last_s = self._time(alive[-1])
        events = sorted(self._events(observation), key=lambda event: event.start_s)
        return Rank(
            rank=first["rank"],
            local_rank=first["local_rank"],
            host=first["host"],
            pid=first["pid"],
            outcome=outcome,
            exit_code=end.get("code"),
            error=_error(outcome, end, observation),
            first_seen_s=self._time(first),
            last_seen_s=last_s,
            activity=None if outcome == "finished" else self._activity(),
            steps=len(self._steps) or None,
            calls=observation.calls,
            compiled_calls=observation.compiled_calls,
            events=tuple(events),
        )

    def _shown(self, file: str) -> str | None:
        """The file below the rank's directory; None for torch and the standard library.

        Hosts may have the program in different places.
        """
        if whose(file) not in ("user", "library"):
            return None
        return file.removeprefix(self._first.get("folder", os.getcwd()) + os.sep)

    def _place(self, frames: Sequence[Frame]) -> tuple[str | None, int | None]:
        """File and line of the innermost frame of the user, else of a library."""
        for owner in ("user", "library"):
            for frame in reversed(frames):
                if whose(frame.file) == owner:
                    return self._shown(frame.file), frame.line
        return None, None

    def _time(self, entry: Entry) -> float:
        return self._at(entry["at"])

    def _at(self, clock_s: float) -> float:
        """Seconds since the origin; the clock of the stream counts from elsewhere.

        Both terms are at least 0, so that rounding makes no time negative.
        """
        since_first_s: float = clock_s - self._first["at"]
        first_s: float = self._first["wall"] - self._origin
        return first_s + since_first_s

    # -- steps -------------------------------------------------------------------------

    def _read_steps(self) -> list[float]:
        """When each step began."""
        begins: list[float] = []
        optimizer_steps: list[float] = []
        for entry in self._entries:
            if entry["kind"] == "step":
                begins.append(self._time(entry))
            elif entry["kind"] == "one_step":
                del begins[1:]
            elif entry["kind"] == "optimizer_step":
                optimizer_steps.append(self._time(entry))
        return begins or [self._time(self._first), *optimizer_steps][:-1]

    def _step(self, at_s: float) -> int | None:
        """The step of a moment; None before the first."""
        begun = bisect_right(self._steps, at_s)
        return begun - 1 if begun else None

    def _step_events(self) -> Iterator[RankEvent]:
        for number, (begin, end) in enumerate(itertools.pairwise(self._steps)):
            yield RankEvent("step", begin, end - begin, number)
        if self._steps:
            yield RankEvent("step", self._steps[-1], None, len(self._steps) - 1)

    # -- compilations ------------------------------------------------------------------

    def _read_compiles(self) -> None:
        for entry in self._entries:
            match entry["kind"]:
                case "trace":
                    self._read_trace(entry)
                case "operations":
                    if compile := self._compiles.get(entry["compile_id"]):
                        compile.rows = entry["rows"]
                case "backward":
                    self._read_backward(entry)

    def _read_trace(self, entry: Entry) -> None:
        metadata = entry["metadata"]
        if text := metadata.get("str"):
            self._strings[text[1]] = text[0]
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        if start := metadata.get("dynamo_start"):
            frame = self._frame(start["stack"][-1])
            compile = _Compile(compile_id, self._time(entry), frame, entry["call"])
            self._compiles.setdefault(compile_id, compile)  # not if it starts over
        compile_or_none = self._compiles.get(compile_id)
        if compile_or_none is None:
            return
        if graph := metadata.get("dynamo_output_graph"):
            compile_or_none.traced_sizes = graph.get("sizes", {})
        if metrics := metadata.get("compilation_metrics"):
            compile_or_none.has_ended = True
            compile_or_none.seconds = _seconds(metrics)
            compile_or_none.cached = _cached(metrics)

    def _frame(self, line: JsonObject) -> Frame:
        file = line["filename"]
        text = self._strings.get(file, "") if isinstance(file, int) else str(file)
        return Frame(text, int(line["line"]), str(line["name"]))

    def _read_backward(self, entry: Entry) -> None:
        """A backward graph is compiled at its first use, unlike most."""
        metadata = entry["metadata"]
        compile_id = f"{metadata.get('frame_id')}/{metadata.get('frame_compile_id')}"
        compile = self._compiles.get(compile_id)
        metrics = metadata["bwd_compilation_metrics"]
        if compile is None or not metrics.get("start_time_us"):
            return
        begin = metrics["start_time_us"] / 1e6 - self._origin
        event = self._compile_event(compile)
        self._backwards.append(
            replace(
                event,
                start_s=begin,
                seconds=_seconds(metrics),
                step=self._step(begin),
                function=f"{event.function} (backward)",
                backward=True,
                reason=None,
                graph=None,
                collectives=(),  # those of the backward graph are not known
                cached=_cached(metrics),
            )
        )

    def _function(self, compile: _Compile) -> Frame:
        """What was compiled, not torch's function around it, if only one can be."""
        if compile.function.file.endswith(AROUND_CALLABLES):
            wrapped = {
                Frame.from_json(entry["function"])
                for entry in self._entries
                if entry["kind"] == "wrapper" and entry["function"]
            }
            if len(wrapped) == 1:
                return wrapped.pop()
        return compile.function

    def _compile_event(self, compile: _Compile) -> RankEvent:
        sizes, dynamic = _input_sizes(compile)
        function = self._function(compile)
        file = self._shown(function.file)
        return RankEvent(
            "compile",
            compile.began,
            compile.seconds,
            self._step(compile.began),
            function=_name(function),
            file=file,
            line=definition(function).line if file else None,
            resumed_at=resumed_at(function.function),
            call=compile.call,
            compile_id=compile.compile_id,
            graph=_graph_hash(compile.rows) if compile.rows else None,
            sizes=sizes,
            dynamic=dynamic,
            cached=compile.cached,
            collectives=_collectives_in(compile.rows),
        )

    # -- events ------------------------------------------------------------------------

    def _events(self, observation: Observation) -> Iterator[RankEvent]:
        reasons = {
            event.compile_id: _guard_text(event) for event in observation.of(GuardEvent)
        }
        forwards = [
            replace(self._compile_event(compile), reason=reasons.get(compile_id))
            for compile_id, compile in self._compiles.items()
        ]
        yield from _numbered([*forwards, *self._backwards])
        yield from _numbered(self._breaks(observation))
        yield from self._step_events()
        yield from self._wraps()
        for event in self._collectives:
            yield replace(event, step=self._step(event.start_s))
        for entry in self._entries:
            if entry["kind"] == "gc":
                begin = self._at(entry["began"])
                yield RankEvent("gc", begin, entry["seconds"], self._step(begin))

    def _breaks(self, observation: Observation) -> Iterator[RankEvent]:
        for event in observation.of(BreakEvent):
            compile = self._compiles.get(event.compile_id or "")
            if not event.logged or compile is None:
                continue
            file, line = self._place(event.frames)
            yield RankEvent(
                "break",
                compile.began,
                step=self._step(compile.began),
                function=_name(self._function(compile)),
                file=file,
                line=line,
                call=event.call,
                compile_id=event.compile_id,
                reason=event.reason.explanation or event.reason.type,
            )

    def _wraps(self) -> Iterator[RankEvent]:
        compiled_later = {
            number
            for entry in self._entries
            if entry["kind"] == "compiled_wrapped"
            for number in entry["numbers"]
        }
        for entry in self._entries:
            if entry["kind"] != "wrap":
                continue
            order: WrapOrder | None = None
            if entry["compiled"]:
                order = "compiled_first"
            elif entry["number"] in compiled_later:
                order = "wrapped_first"
            file, line = self._place([Frame(*plain) for plain in entry["site"]])
            begin = self._time(entry)
            yield RankEvent(
                "wrap",
                begin,
                step=self._step(begin),
                function=entry["how"],
                file=file,
                line=line,
                order=order,
            )

    # -- collectives ------------------------------------------------------------------

    def _read_collectives(self) -> list[RankEvent]:
        """The collectives of a rank; `seconds` is None for one that had not ended.

        Gloo does not record when a collective ended, only that it did: such a one has
        `seconds` of 0 until the other ranks are known (see `joined_ranks`).
        """
        events: dict[int, RankEvent] = {}
        for entry in self._entries:
            if entry["kind"] == "collectives":
                events |= {row["record"]: self._collective(row) for row in entry["new"]}
                for record, completed in entry["ended"]:
                    begin = events[record].start_s + self._origin
                    seconds = _collective_seconds(begin, completed, True)
                    events[record] = replace(events[record], seconds=seconds)
            elif entry["kind"] == "collective_place":
                file, line = self._shown(entry["place"][0]), entry["place"][1]
                event = events[entry["record"]]
                events[entry["record"]] = replace(event, file=file, line=line)
        return list(events.values())

    def _collective(self, row: JsonObject) -> RankEvent:
        begin, end, has_ended = row["created_s"], row["completed_s"], row["ended"]
        return RankEvent(
            "collective",
            begin - self._origin,
            _collective_seconds(begin, end, has_ended),
            function=row["name"],
            nth=row["number"],
            group=row["group"],
            members=tuple(row["members"]),
        )

    # -- the end -----------------------------------------------------------------------

    def _activity(self) -> str:
        """What the rank did last, from its last entries."""
        for compile in reversed(self._compiles.values()):
            if not compile.has_ended:
                event = self._compile_event(compile)
                place = f" ({event.file}:{event.line})" if event.file else ""
                return f"compiling {event.function}{place}"
        return RUNNING


def _outcome(end: Entry, observation: Observation, ending: str) -> RankOutcome:
    """How a rank ended; one without an end was stopped together with its supervisor."""
    if not end:
        return _OUTCOMES.get(ending, "killed")
    if end["ending"] != "finished":
        return _OUTCOMES[end["ending"]]
    if end["code"] < 0:
        return "killed"
    return "failed" if end["code"] or observation.error else "finished"


def _error(outcome: RankOutcome, end: Entry, observation: Observation) -> str | None:
    if outcome == "finished":
        return None
    if observation.error:
        return one_line(observation.error)
    if end.get("ending") in ("interrupted", "stopped"):
        return "it was ended after another rank had failed, or by the launcher"
    code = end.get("code")
    return describe(code) if code else None


def _seconds(metrics: JsonObject) -> float | None:
    duration_us = metrics.get("duration_us")
    return None if duration_us is None else duration_us / 1e6


def _cached(metrics: JsonObject) -> bool | None:
    """Whether a cache had all graphs; None if none was asked."""
    hits = sum(metrics.get(f"{cache}_hit_count") or 0 for cache in _CACHES)
    misses = sum(metrics.get(f"{cache}_miss_count") or 0 for cache in _CACHES)
    return misses == 0 if hits or misses else None


def _graph_hash(rows: Sequence[Sequence[Any]]) -> str:
    """A hash of operations and what they take, without sizes and other numbers."""
    wiring = json.dumps([(row[0], row[1]) for row in rows])
    return hashlib.sha256(wiring.encode()).hexdigest()[:12]


def _collectives_in(rows: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    names = [str(row[0]) for row in rows if row[0] != INPUT]
    return tuple(
        name for name in names if any(word in name for word in _COLLECTIVE_WORDS)
    )


def _input_sizes(
    compile: _Compile,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The sizes of the tensors that come in, and those that the graph leaves open.

    A graph names its inputs in the order of its first operations, which have the sizes
    of this call: `l_x_` with `s77` is `x` with 8. Parameters are not among the sizes.
    """
    inputs = [row for row in compile.rows if row[0] == INPUT and row[3] == "tensor"]
    sizes: dict[str, str] = {}
    dynamic: list[str] = []
    for (name, traced), row in zip(compile.traced_sizes.items(), inputs, strict=False):
        if _STATE.search(name):
            continue
        readable = name.removeprefix("l_").removesuffix("_")
        sizes[readable] = "x".join("?" if n is None else str(n) for n in row[4])
        dynamic += [
            f"{readable}.size({dim})"
            for dim, size in enumerate(traced)
            if not isinstance(size, int)
        ]
    return sizes, tuple(dynamic)


def _collective_seconds(
    created: float, completed: float | None, ended: bool
) -> float | None:
    if completed is not None:
        return completed - created
    return 0.0 if ended else None


def _numbered(events: Iterable[RankEvent]) -> Iterator[RankEvent]:
    """Numbers the events of each function from 1."""
    counts: Counter[tuple[object, ...]] = Counter()
    for event in events:
        # A break is numbered within its function, wherever its line is.
        code = (event.line, event.resumed_at) if event.kind == "compile" else ()
        key = (event.function, event.file if code else None, *code)
        counts[key] += 1
        yield replace(event, nth=counts[key])


def _name(function: Frame) -> str:
    return qualified_name(definition(function))


def _guard_text(event: GuardEvent) -> str | None:
    return None if event.guard is None else one_line(event.guard.text)
