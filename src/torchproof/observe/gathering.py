"""Turns what a child wrote while it ran a target into events.

In: the entries of its stream and how it ended. Out: one `Observation`. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from torchproof.observe.trace_log import (
    Counted,
    Record,
    interpret,
    without_torchproof,
)
from torchproof.process import Followed
from torchproof.records import (
    Event,
    Frame,
    GraphEvent,
    MethodCallEvent,
    Observation,
    Operation,
    OriginalCallEvent,
    RaisedError,
    Runs,
    UserError,
    WrapperEvent,
    frames_in,
    shapes,
    whose,
)
from torchproof.targets import Target, factory_targets

# The file of the function that torch compiles in place of an object with `__call__`.
AROUND_CALLABLES = "torch/_dynamo/external_utils.py"
REPORTED = {"user", "library"}  # whose code is reported; torch's own is not
_WRAPPER_FIELDS = (
    *("name", "what", "module", "arguments", "off", "by_torchproof", "in_place"),
)


def gather(
    entries: Sequence[dict[str, Any]], ending: str, code: int | None, target: Target
) -> Observation:
    """Turns the child's stream into an observation; `code` is its exit code."""
    child = Followed(list(entries), ending, code)
    for entry in child.of("unusable"):
        raise UserError(entry["message"], details=entry.get("details", ""))
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_kind.setdefault(entry["kind"], []).append(entry)
    counts = child.last("counts")
    lacks = {entry["feature"]: entry["message"] for entry in child.of("missing_hook")}
    is_observed = lacks.keys().isdisjoint({"trace", "breaks"})
    if not is_observed:
        by_kind, counts = {}, {}
    return Observation(
        events=tuple(_events(by_kind, counts)) if is_observed else (),
        environment=cast(shapes.Environment, child.last("environment")),
        calls=counts.get("calls"),
        compiled_calls=counts.get("compiled_calls"),
        ending="crashed" if child.crashed else ending,
        exit_code=code,
        error=child.failure(script=target.kind == "script"),
        traced=_traced(by_kind.get("lines", ())),
        compiled=_compiled(by_kind.get("wrapper", ())),
        lacks=lacks,
        forms=counts.get("forms", {}),
        factories=factory_targets(target),
        settings=counts.get("settings", {}),
    )


def _traced(
    entries: Iterable[Mapping[str, Any]],
) -> dict[str, dict[str, tuple[int, ...]]]:
    """The lines of the program that Dynamo traced, by file and function."""
    lines_by_file: dict[str, dict[str, set[int]]] = {}
    for entry in entries:
        for file, functions in entry["files"].items():
            if whose(file) in REPORTED:
                lines_by_function = lines_by_file.setdefault(file, {})
                for name, lines in functions.items():
                    lines_by_function.setdefault(name, set()).update(lines)
    return {
        file: {name: tuple(sorted(lines)) for name, lines in functions.items()}
        for file, functions in lines_by_file.items()
    }


def _compiled(entries: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    names_by_file: dict[str, set[str]] = {}
    for entry in entries:
        for file, name in entry.get("reaches", ()):
            if whose(file) in REPORTED:
                names_by_file.setdefault(file, set()).add(name)
    return {file: tuple(sorted(names)) for file, names in names_by_file.items()}


def _events(
    by_kind: Mapping[str, Sequence[Mapping[str, Any]]], counts: Mapping[str, Any]
) -> Iterable[Event]:
    records = [
        Record(e["metadata"], e["payload"], e["call"]) for e in by_kind.get("trace", ())
    ]
    callables = {tuple(e["code"][0]) for e in by_kind.get("wrapper", ()) if e["code"]}
    for event in interpret(records, _counted(by_kind, counts)):
        if event.function and event.function.file.endswith(AROUND_CALLABLES):
            # If only one callable was compiled, the event is about that one.
            yield replace(event, function=_only(callables) or event.function)
        else:
            yield event
    yield from _wrappers(by_kind.get("wrapper", ()), counts)
    yield from _bypasses(by_kind, counts)


def _counted(
    by_kind: Mapping[str, Sequence[Mapping[str, Any]]], counts: Mapping[str, Any]
) -> Counted:
    """What the observer counted, by compile id."""

    def ids(kind: str) -> frozenset[str]:
        return frozenset(e["compile_id"] for e in by_kind.get(kind, ()))

    captured = {entry["compile_id"]: entry for entry in by_kind.get("operations", ())}
    runs = counts.get("graphs", {})
    return Counted(
        raised=ids("raised"),
        in_eager=ids("raised_in_eager"),
        graphs={
            each: _graph(each, runs.get(each), captured.get(each), counts)
            for each in runs.keys() | captured.keys()
        },
        skips={s["compile_id"]: Runs(*s["runs"]) for s in counts.get("skipped", ())},
        marks=tuple((name, dim) for name, dim in counts.get("marks", ())),
    )


def _graph(
    compile_id: str,
    runs: Sequence[int] | None,
    captured: Mapping[str, Any] | None,
    counts: Mapping[str, Any],
) -> GraphEvent:
    """What the observer saw of a graph; the trace has its place."""
    return GraphEvent(
        runs=Runs(*runs) if runs else None,
        operations=_operations(captured) if captured else None,
        changed=captured["changed"] if captured else {},
        zeros=tuple(captured["zeros"]) if captured else (),
        backwards=counts.get("backwards", {}).get(compile_id, 0),
        late_backwards=counts.get("late_backwards", {}).get(compile_id, 0),
    )


def _operations(entry: Mapping[str, Any]) -> tuple[Operation, ...]:
    """The operations of a graph, as the child wrote them."""
    stacks = [without_torchproof(frames_in(text)) for text in entry["stacks"]]
    operations = []
    for *written, stack in entry["rows"]:
        fields: list[Any] = [tuple(v) if isinstance(v, list) else v for v in written]
        fields.append(stacks[stack])
        operations.append(Operation(*fields))
    return tuple(operations)


def _wrappers(
    entries: Iterable[Mapping[str, Any]], counts: Mapping[str, Any]
) -> Iterable[WrapperEvent]:
    """Events for what was compiled, and how often it was called."""
    counts_by_number = {w[0]: w for w in counts.get("wrappers", ())}
    for entry in entries:
        _, calls, compiled, eager, inlined = counts_by_number.get(
            entry["number"], (0, None, None, None, None)
        )
        yield WrapperEvent(
            frames=_frames(entry.get("site", ())),
            function=next(iter(_frames(entry["code"])), None),
            **{name: entry[name] for name in _WRAPPER_FIELDS if name in entry},
            around=_frames(entry.get("around", ())),
            calls=calls,
            compiled_calls=compiled,
            eager_stance=eager,
            inlined=inlined,
        )


def _bypasses(
    by_kind: Mapping[str, Sequence[Mapping[str, Any]]], counts: Mapping[str, Any]
) -> Iterable[Event]:
    """Events for calls that bypassed the compiled code, and calls that raised."""
    bypasses = dict(enumerate(counts.get("bypasses", ())))
    kinds = {"method_call": MethodCallEvent, "original_call": OriginalCallEvent}
    for kind, event in kinds.items():
        for entry in by_kind.get(kind, ()):
            yield event(
                frames=_frames(entry["site"]),
                model=entry["model"],
                module=entry["module"],
                method=entry["method"],
                count=bypasses.get(entry["number"], 1),
            )
    for entry in by_kind.get("call_error", ()):
        raised = RaisedError.from_json(entry["raised"])
        yield raised.event(Frame(*entry["function"]), entry["call"])


def _only(callables: Iterable[tuple[Any, ...]]) -> Frame | None:
    frames = _frames(callables)
    return frames[0] if len(frames) == 1 else None


def _frames(plain: Iterable[Sequence[Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, function) for file, line, function in plain)
