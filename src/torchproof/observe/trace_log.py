"""Turns torch's structured trace into events.

Takes trace records, either live from a logging handler or read from a `TORCH_TRACE`
folder. The records are the same either way. Returns `Event`s.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar

from torchproof.observe.guard_failures import parse as parse_guard
from torchproof.observe.recompile_cause import causes_of
from torchproof.records import (
    BreakEvent,
    BreakReason,
    Call,
    CompileEvent,
    EagerErrorEvent,
    Event,
    FailedGuard,
    FailureEvent,
    Frame,
    GraphEvent,
    Guard,
    GuardEvent,
    JsonObject,
    LimitEvent,
    RecompileEvent,
    Region,
    Runs,
    SpecializationEvent,
    UserError,
    definition,
    files,
    frames_in,
    is_frame_of,
    original_name,
    schema,
    split_region,
    starts_with,
    whose,
)
from torchproof.torch_private import break_ids

ARTIFACTS = frozenset(
    {"dynamo_graph_break_reason", "recompile_reasons", "dynamo_error"}
)
NAMES = frozenset(
    {
        "compilation_metrics",
        "dynamo_output_graph",
        "dynamo_start",
        "guard_added",
        "guard_added_fast",
        "str",
        "symbolic_shape_specialization",
    }
)
PAYLOAD_NOT_NEEDED = frozenset({"dynamo_output_graph"})

_ENVELOPE = re.compile(r"^[VIWEC]\d{4} [\d:.]+ \d+ \S+\] (?P<json>\{.*)$")
_GB_PAGE = re.compile(r"https://\S+/gb/(?P<id>gb\d+)\.html")
_NESTED = "*** While handling this graph break, another graph break occurred: ***"
_LOST_VALUE = "GB0092"  # torch's id of a value that cannot be rebuilt at a break
_SKIP_MARKS = (
    "Skipping the function and falling back to eager",
    "which results in a skip",
)
# Frames that Dynamo skips before it traces them, without logging a break.
_NEVER_TRACED = re.compile(
    r"Attempt to trace generator|skip_frame|functor?ch mode", re.IGNORECASE
)
_LIMIT = "Dynamo recompile limit exceeded"
_MOST_BYTES = 2 << 30  # of a trace file, whose records are kept in memory
_T = TypeVar("_T")


@dataclass(frozen=True)
class Record:
    """One record of the structured trace, and the call in which it was written."""

    metadata: JsonObject
    payload: str = ""
    call: int | None = None

    @property
    def name(self) -> str | None:
        artifact = self.metadata.get("artifact")
        if isinstance(artifact, Mapping):
            name = artifact.get("name")
            return name if isinstance(name, str) and name in ARTIFACTS else None
        return next((name for name in NAMES if name in self.metadata), None)

    @property
    def compile_id(self) -> str | None:
        frame = self.metadata.get("frame_id")
        attempt = self.metadata.get("frame_compile_id")
        return None if frame is None else f"{frame}/{attempt}"


def read_folder(folder: Path) -> list[Record]:
    """The records of every trace file in a folder."""
    try:
        names = sorted(name for name in os.listdir(folder) if name[0] != ".")
        paths = [folder / name for name in names if os.path.isfile(folder / name)]
        records = [
            record
            for number, path in enumerate(paths)
            for record in _read_file(path, number)
            if _is_valid(record)
        ]
    except OSError as error:
        where = error.filename or folder
        raise UserError(f"cannot read {where}: {error.strerror}") from None
    if not any(record.name for record in records):
        raise UserError(
            f"no compilation trace in {folder}: record one with TORCH_TRACE={folder}"
            " python ..."
        )
    return records


class _Line(TypedDict):
    filename: str | int
    line: int
    name: str | int
    loc: NotRequired[str | None]


class _Started(TypedDict):
    stack: tuple[_Line, ...]


class _Stacked(TypedDict, total=False):
    user_stack: tuple[_Line, ...] | None
    sources: tuple[Any, ...] | None


class _Metrics(TypedDict, total=False):
    co_filename: str | None
    co_name: str | None
    co_firstlineno: int | None
    fail_type: str | None
    fail_reason: str | None
    fail_user_frame_filename: str | None
    fail_user_frame_lineno: int | None


# The types of the fields that are read from a record's metadata.
_FIELD_TYPES: JsonObject = {
    "frame_id": str | int | None,
    "frame_compile_id": int | None,
    "dynamo_start": _Started,
    "symbolic_shape_specialization": _Stacked,
    "guard_added": _Stacked,
    "guard_added_fast": _Stacked,
    "compilation_metrics": _Metrics,
    "str": tuple[str | int, ...],
}


def _is_valid(record: Record) -> bool:
    """Whether a record is as torch writes it; damaged records are ignored."""
    if record.name is None:
        return True
    try:
        for name, kind in _FIELD_TYPES.items():
            if name in record.metadata:
                schema.check(kind, record.metadata[name])
    except schema.Mismatch:
        return False
    metrics = record.metadata.get("compilation_metrics", {})
    code = [metrics.get(key) for key in ("co_filename", "co_firstlineno", "co_name")]
    complete = not code[0] or None not in code
    if not metrics.get("fail_user_frame_lineno"):
        return complete and _is_interned(record.metadata.get("str", ["", 0]))
    return complete and metrics.get("fail_user_frame_filename") is not None


def _is_interned(pair: list[Any]) -> bool:
    return len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], int)


def _read_file(path: Path, number: int) -> Iterator[Record]:
    """The records of one file. Each file is of one process and has its own frame ids.

    Frame ids of all files but the first get the file's number as a prefix.
    """
    metadata: JsonObject | None = None
    payload: list[str] = []
    file = files.open_regular(path, _MOST_BYTES)
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("\t"):
                payload.append(line[1:])
                continue
            if metadata is not None:
                yield Record(metadata, "".join(payload).rstrip("\n"))
            metadata = _envelope(line)
            payload = []
            if metadata is not None:
                metadata["file"] = path.name
                if number and "frame_id" in metadata:
                    metadata["frame_id"] = f"{number}.{metadata['frame_id']}"
    if metadata is not None:
        yield Record(metadata, "".join(payload).rstrip("\n"))


def _envelope(line: str) -> JsonObject | None:
    match = _ENVELOPE.match(line)
    if match is None:
        return None
    try:
        loaded = schema.loads(match["json"])
    except (
        ValueError,
        RecursionError,
    ):  # the process was killed while writing the line
        return None
    return loaded if isinstance(loaded, dict) else None


@dataclass(frozen=True)
class _Start:
    """The stack at which Dynamo began to compile a frame, split at the region's entry.

    Torch drops the innermost frames of the stack it records. If it drops the entry of
    the region, only callers remain, and one more caller may be missing.
    """

    callers: tuple[Frame, ...] = ()
    inside: tuple[Frame, ...] = ()
    entry_known: bool = True
    entry: Frame | None = None  # the function compiled first in the same call
    above: tuple[Frame, ...] | None = None  # all frames in the region; None: unknown


def _of(by_compile_id: Mapping[str, _T], compile_id: str | None) -> _T | None:
    """The value for a compilation, else for another one of the same function."""
    if compile_id is None or compile_id in by_compile_id:
        return by_compile_id.get(compile_id or "")
    family = compile_id.split("/")[0] + "/"
    return next(
        (value for key, value in by_compile_id.items() if key.startswith(family)), None
    )


@dataclass
class _TraceState:
    """What the records read so far say about each compilation."""

    counted: Counted
    strings: dict[int, str] = field(default_factory=dict)
    functions: dict[str, Frame] = field(default_factory=dict)
    starts: dict[str, _Start] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    entries: dict[tuple[Frame, ...], Frame] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    guards: dict[str, list[tuple[Frame, ...]]] = field(default_factory=dict)

    def stack(self, stack: Iterable[JsonObject]) -> tuple[Frame, ...]:
        return tuple(
            Frame(
                (
                    self.strings.get(f["filename"], "")
                    if isinstance(f["filename"], int)
                    else f["filename"]
                ),
                int(f["line"]),
                str(f["name"]),
                str(f.get("loc") or "").strip(),
            )
            for f in stack
        )

    def function(self, compile_id: str | None) -> Frame | None:
        """The function of a compilation; a refused recompile has no record of it."""
        return _of(self.functions, compile_id)

    def start(self, compile_id: str | None) -> _Start:
        return _of(self.starts, compile_id) or _Start()

    def split(self, compile_id: str | None, frames: tuple[Frame, ...] = ()) -> Region:
        """Splits a stack that torch formatted into callers and frames in the region.

        For a graph break torch formats the whole stack, elsewhere only that of the
        traced code. Without a stack the compiled function takes its place.
        """
        start = self.start(compile_id)
        function = self.function(compile_id)
        callers = starts_with(frames, start.callers)
        if not callers:
            inside = frames or ((definition(function),) if function else ())
            return Region(start.callers, (*start.inside, *inside))
        if not start.entry_known and self._is_caller(frames[callers : callers + 1]):
            callers += 1
        return Region(frames[:callers], frames[callers:])

    def first_of(self, region: Region, function: Frame) -> Frame | None:
        """The function that Dynamo compiled first in a call; None if it is this one.

        It stands in for the frames between the two, which torch does not record.
        """
        first = self.entries.setdefault(region.callers, function)
        same = (first.file, first.line) == (function.file, function.line)
        return None if same else first

    def _is_caller(self, missing: tuple[Frame, ...]) -> bool:
        """Whether a frame that torch dropped from its record calls the region.

        Otherwise it is inside: Dynamo compiled it before, up to a graph break.
        """
        compiled = {
            (f.file, original_name(f.function)) for f in self.functions.values()
        }
        return any((f.file, original_name(f.function)) not in compiled for f in missing)


@dataclass(frozen=True)
class Counted:
    """What an observer counted, which torch's records do not have."""

    # Compilations that raised; None: torch's records are all there is.
    raised: frozenset[str] | None = None
    in_eager: frozenset[str] = frozenset()  # those with an error that eager raises too
    graphs: Mapping[str, GraphEvent] = field(
        default_factory=dict
    )  # without their place
    skips: Mapping[str, Runs] = field(default_factory=dict)  # runs of skipped frames
    marks: tuple[tuple[str, int], ...] = ()  # dimensions that were marked dynamic

    def runs(self, compile_id: str) -> Runs | None:
        """Those of the skipped frame, or of the graph before a break."""
        graph = self.graphs.get(compile_id)
        return self.skips.get(compile_id) or (graph.runs if graph else None)


def interpret(
    records: Iterable[Record], counted: Counted | None = None
) -> list[CompileEvent]:
    """The events for graphs, breaks, skips, recompiles, specialisations and errors."""
    events: list[CompileEvent] = []
    by_file: dict[str, _TraceState] = {}
    file = ""
    for record in _starts_first(records):
        file = str(record.metadata.get("file", file))
        state = by_file.setdefault(file, _TraceState(counted or Counted()))
        match record.name:
            case "str":
                text, number = record.metadata["str"]
                state.strings[number] = text
            case "dynamo_start":
                _start(record, state)
            case "dynamo_output_graph":
                events.append(_graph(record, state))
            case "dynamo_graph_break_reason":
                events.append(_break(record, state))
            case "recompile_reasons":
                events.append(_recompile(record, state))
            case "symbolic_shape_specialization":
                events.append(_specialization(record, state))
            case "guard_added" | "guard_added_fast":
                added = record.metadata[record.name]
                if added.get("user_stack"):
                    stack = state.stack(added["user_stack"])
                    state.guards.setdefault(record.compile_id or "", []).append(stack)
            case "dynamo_error":
                state.errors[record.compile_id or ""] = record.payload
            case "compilation_metrics":
                events = _metrics(record, state, events)
    return _with_causes(_with_callers(_without_lost_values(events)))


def _with_causes(events: list[CompileEvent]) -> list[CompileEvent]:
    """Gives each failed guard's event the guard that is the cause, and its stack."""
    failed = [e for e in events if isinstance(e, GuardEvent) and e.failed_guards]
    causes = {id(e): cause for e, cause in zip(failed, causes_of(failed), strict=True)}
    return [
        replace(event, frames=without_torchproof(cause.frames), guard=cause.guard)
        if isinstance(event, GuardEvent) and (cause := causes.get(id(event)))
        else event
        for event in events
    ]


def _without_lost_values(events: list[CompileEvent]) -> list[CompileEvent]:
    """Joins a break with the failure to rebuild a value that was alive at it.

    Torch logs the failure after the break, at the same line. What removes the break
    leaves nothing to rebuild.
    """
    kept: list[CompileEvent] = []
    for event in events:
        other = _break_before(event, kept)
        if other is None:
            kept.append(event)
            continue
        reason = replace(other.reason, nested="Reconstruction failure")
        joined = replace(other, reason=reason, skips=True)
        kept = [joined if each is other else each for each in kept]
    return kept


def _break_before(event: CompileEvent, events: list[CompileEvent]) -> BreakEvent | None:
    """The break of the same compilation at whose line a value cannot be rebuilt."""
    if not isinstance(event, BreakEvent) or event.reason.gb_id != _LOST_VALUE:
        return None
    breaks = [e for e in reversed(events) if isinstance(e, BreakEvent)]
    own = [e for e in breaks if e.compile_id == event.compile_id]
    lines = _lines(event)
    return next((e for e in own if _lines(e)[: len(lines)] == lines), None)


def _lines(event: BreakEvent) -> list[tuple[str, int]]:
    return [(frame.file, frame.line) for frame in event.frames]


def _with_callers(events: list[CompileEvent]) -> list[CompileEvent]:
    """Gives a break the frames of the compiled function if torch left them out.

    In a trace, torch leaves out a function that calls one with the same name. The whole
    stack is in the record of the same break in the called function, compiled alone.
    """
    breaks = [e for e in events if isinstance(e, BreakEvent) and e.logged]
    return [
        replace(event, frames=_whole_stack(event, breaks))
        if isinstance(event, BreakEvent)
        and event.logged
        and not _has_own_frame(event, event.function)
        else event
        for event in events
    ]


def _whole_stack(event: Event, breaks: Iterable[Event]) -> tuple[Frame, ...]:
    for other in breaks:
        same = other.frames[-1:] == event.frames[-1:]
        if same and _has_own_frame(other, event.function):
            return other.frames
    return event.frames


def _has_own_frame(event: Event, function: Frame | None) -> bool:
    return any(is_frame_of(frame, function) for frame in event.frames)


def _starts_first(records: Iterable[Record]) -> Iterator[Record]:
    """Moves each `recompile_reasons` record behind the `dynamo_start` that follows."""
    reasons: Record | None = None
    for record in records:
        if reasons is not None and record.name not in (None, "str"):
            starts = record.name == "dynamo_start"
            yield from (record, reasons) if starts else (reasons, record)
            reasons = None
        elif record.name == "recompile_reasons":
            reasons = record
        else:
            yield record
    if reasons is not None:
        yield reasons


def _about(
    record: Record, state: _TraceState, region: Region | None = None
) -> JsonObject:
    """The fields that all events have in common."""
    region = region or state.split(record.compile_id)
    start = state.start(record.compile_id)
    return {
        "compile_id": record.compile_id,
        "frames": without_torchproof(region.inside),
        "function": state.function(record.compile_id),
        "call": record.call,
        "callers": without_torchproof(region.callers),
        "entry_call": state.calls.get(record.compile_id or ""),
        "entry": start.entry,
        "above": start.above,
    }


def without_torchproof(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(f for f in frames if whose(f.file) != "torchproof")


def _graph(record: Record, state: _TraceState) -> GraphEvent:
    counted = state.counted.graphs.get(record.compile_id or "", GraphEvent())
    return replace(counted, **_about(record, state))


def _start(record: Record, state: _TraceState) -> None:
    started = record.metadata["dynamo_start"]
    frames = state.stack(started["stack"])
    if frames and record.compile_id:
        *above, function = frames
        state.functions[record.compile_id] = function
        region = split_region(above)
        first = None if region is None else state.first_of(region, function)
        call = Call.read(record.metadata.get("entry_call") or {})
        if call is None and region is not None and first is None:
            call = _call_in_source(region, definition(function))
        if call is not None:
            state.calls[record.compile_id] = call
        complete = bool(started.get("complete"))
        state.starts[record.compile_id] = (
            _Start(tuple(above), (), complete)
            if region is None
            else _Start(*region, entry=first, above=region.inside if complete else None)
        )


def _call_in_source(region: Region, function: Frame) -> Call | None:
    """The call of a library's function, from the source: a trace does not record it."""
    inside = any(whose(frame.file) in {"user", "library"} for frame in region.inside)
    callers = [f for f in region.callers if whose(f.file) != "torch" and f.file]
    if inside or not callers or whose(function.file) != "library":
        return None
    return Call.read_from_source(callers[-1], function)


def _break(record: Record, state: _TraceState) -> BreakEvent:
    text = record.payload
    reason, frames = read_break(text)
    return BreakEvent(
        **_about(record, state, state.split(record.compile_id, frames)),
        reason=reason,
        skips=any(mark in text for mark in _SKIP_MARKS),
        runs=state.counted.runs(record.compile_id or ""),
    )


def read_break(text: str) -> tuple[BreakReason, tuple[Frame, ...]]:
    """The reason of a graph break, and the stack that torch formatted for it."""
    above_python = re.split(
        r"\nTraceback \(most recent call last\):|\nNoneType: None", text
    )[0]
    stack = re.split(
        r"User code traceback:|in the following user code:", above_python, maxsplit=1
    )
    if "Graph Break Reason:" in above_python:
        reason = above_python.split("Graph Break Reason:", 1)[1].split(
            "User code traceback:"
        )[0]
    else:  # the frame is skipped: the payload ends with the exception
        reason = text.rsplit("Unsupported: ", 1)[-1]
    return read_reason(reason), frames_in(stack[-1])


def read_reason(text: str) -> BreakReason:
    """The parts of a graph break message."""
    first, _, nested = text.partition(_NESTED)
    intro = re.match(
        r"\s*(?:Encountered|Failed to handle) graph break.*?:\n\n", first, re.DOTALL
    )
    if intro:
        first = first[intro.end() :]
    page = _GB_PAGE.search(first)
    kind = first.strip().splitlines()[0].strip() if first.strip() else "unknown"
    return BreakReason(
        type=kind,
        explanation=_section(first, "Explanation"),
        hints=tuple(
            _squash(h)
            for h in re.findall(
                r"Hint: (.*?)(?=\n\s*(?:Hint:|\n)|\Z)", first, re.DOTALL
            )
        ),
        context=_section(first, "Developer debug context"),
        gb_id=page["id"].upper() if page else break_ids().get(kind),
        page=page.group(0) if page else None,
        rest_is_eager="skipping the rest of the function" in text,
        nested=nested.strip().splitlines()[0].strip() if nested.strip() else None,
    )


def _section(text: str, title: str) -> str:
    match = re.search(
        rf"{title}: (.*?)(?=\n\s*Hint:|\n\s*Developer debug context:|\n\n For more"
        r" details|\n\n\S|\Z)",
        text,
        re.DOTALL,
    )
    return _squash(match[1]) if match else ""


def _squash(text: str) -> str:
    return " ".join(text.split())


def _recompile(record: Record, state: _TraceState) -> RecompileEvent:
    try:
        loaded = json.loads(record.payload)
    except (ValueError, RecursionError):
        loaded = record.payload
    items = loaded if isinstance(loaded, list) else [loaded]
    reasons = [str(item) for item in items] or ["unknown"]
    failed_guards = tuple(_failed_guard(reason, record, state) for reason in reasons)
    region = Region(state.start(record.compile_id).callers, failed_guards[0].frames)
    return RecompileEvent(
        **_about(record, state, region),
        guard=failed_guards[0].guard,
        failed_guards=failed_guards,
    )


def _failed_guard(reason: str, record: Record, state: _TraceState) -> FailedGuard:
    """A guard with its stack, else with the line it quotes, if it is in this file."""
    guard = parse_guard(reason)
    function = state.function(record.compile_id)
    frames = frames_in(reason)
    if not frames and function and _is_in(guard, function):
        quoted = Frame(function.file, guard.line or 0, function.function, guard.code)
        frames = (quoted,)
    return FailedGuard(guard, state.split(record.compile_id, frames).inside)


def _is_in(guard: Guard, function: Frame) -> bool:
    return bool(guard.line) and Path(guard.file).name == Path(function.file).name


def _specialization(record: Record, state: _TraceState) -> SpecializationEvent:
    fields = record.metadata["symbolic_shape_specialization"]
    stack = state.stack(fields.get("user_stack") or ())
    return SpecializationEvent(
        **_about(record, state, state.split(record.compile_id, stack)),
        sources=tuple(str(source) for source in fields.get("sources") or ()),
        value=str(fields.get("value")),
        reason=str(fields.get("reason")),
        symbol=str(fields.get("symbol")),
        marks=state.counted.marks,
    )


def _metrics(
    record: Record, state: _TraceState, events: list[CompileEvent]
) -> list[CompileEvent]:
    """The events after the end of a compilation: success, limit, skip or error."""
    metrics = record.metadata["compilation_metrics"]
    if metrics.get("co_filename") and record.compile_id:
        state.functions[record.compile_id] = Frame(
            metrics["co_filename"], int(metrics["co_firstlineno"]), metrics["co_name"]
        )
    reason = str(metrics.get("fail_reason") or "")
    if not metrics.get("fail_type"):
        return events
    if reason.startswith(_LIMIT) or "FailOnRecompileLimitHit" in metrics["fail_type"]:
        return _limit(record, state, events, reason)
    soft = metrics["fail_type"] in {"Unsupported", "UserError", "SkipFrame"}
    same = [e for e in events if e.compile_id == record.compile_id]
    breaks = [e for e in same if isinstance(e, BreakEvent) and e.logged]
    if soft and breaks:
        last = breaks[-1]
        return [replace(last, skips=True) if e is last else e for e in events]
    return [*events, _failure(record, state, metrics["fail_type"], reason)]


def _failure(
    record: Record, state: _TraceState, error: str, message: str
) -> BreakEvent | FailureEvent | EagerErrorEvent:
    """A failed compilation: an error, or a frame that Dynamo skipped without a break.

    A live run records whether it raised. For a trace it is inferred: Dynamo logs a
    break for each frame that it skips while tracing, so a failure without one raises.
    """
    compile_id, counted = record.compile_id or "", state.counted
    frames = _failure_frames(record, state, message)
    about = _about(record, state, state.split(record.compile_id, frames))
    if compile_id in counted.in_eager:
        return EagerErrorEvent(**about)
    about["reason"] = reason = read_reason(message)
    raised = None if counted.raised is None else compile_id in counted.raised
    if raised is False or (raised is None and _NEVER_TRACED.search(reason.type)):
        runs = counted.runs(compile_id)
        return BreakEvent(**about, skips=True, runs=runs, logged=False)
    runs = counted.skips.get(compile_id)
    return FailureEvent(**about, error=error, message=message, runs=runs, raised=raised)


def _failure_frames(
    record: Record, state: _TraceState, reason: str
) -> tuple[Frame, ...]:
    """The user's stack of a failure; torch adds it to the error, not to the reason."""
    error = state.errors.get(record.compile_id or "", "")
    if "BackendCompilerFailed" in error:
        return frames_in(error)
    user = error.rsplit("from user code:", 1)
    if len(user) == 2 and (frames := frames_in(user[1])):
        return frames
    if frames := frames_in(reason):
        return frames
    metrics = record.metadata["compilation_metrics"]
    if metrics["fail_type"] == "ConstraintViolationError":
        # A dynamic range was narrowed: blame the first comparison.
        stacks = state.guards.get(record.compile_id or "", [])
        narrowing = [s for s in stacks if re.search(r"[<>=%]", s[-1].code)]
        return (narrowing or stacks or [()])[0]
    if metrics.get("fail_user_frame_lineno"):
        where = (
            metrics["fail_user_frame_filename"],
            int(metrics["fail_user_frame_lineno"]),
        )
        return (Frame(*where, metrics.get("co_name") or ""),)
    return ()


def _limit(
    record: Record, state: _TraceState, events: list[CompileEvent], reason: str
) -> list[CompileEvent]:
    """Replaces the refused recompile's event by an event for the limit."""
    refused = [
        e
        for e in events
        if isinstance(e, RecompileEvent) and e.compile_id == record.compile_id
    ]
    last = refused[-1] if refused else None
    limit = re.search(
        r"exceeding the (\w+) cache size limit \(currently set to (\d+)\)", reason
    )
    event = LimitEvent(
        **_about(record, state, Region(last.callers, last.frames) if last else None),
        setting=limit[1] if limit else "recompile_limit",
        limit=int(limit[2]) if limit else None,
        guard=last.guard if last else None,
        failed_guards=last.failed_guards if last else (),
    )
    return [e for e in events if e not in refused] + [event]
