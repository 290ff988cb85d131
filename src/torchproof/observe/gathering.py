"""Turns what a child wrote while it ran a target into events.

In: the entries of its stream and how it ended. Out: one `Observation`. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from torchproof.observe.trace_log import (
    Counted,
    Record,
    interpret,
    without_torchproof,
)
from torchproof.process import Entry, Followed
from torchproof.records import (
    BypassEvent,
    Event,
    Frame,
    GraphEvent,
    Observation,
    Operation,
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


def gather(child: Followed, target: Target) -> Observation:
    """Turns the child's stream into an observation."""
    for entry in child.of("unusable"):
        raise UserError(entry["message"], details=entry.get("details", ""))
    lacks = {entry["feature"]: entry["message"] for entry in child.of("missing_hook")}
    is_observed = lacks.keys().isdisjoint({"trace", "breaks"})
    seen = child if is_observed else replace(child, entries=[])
    counts = seen.last("counts")
    return Observation(
        events=tuple(_events(seen, counts)),
        environment=cast(shapes.Environment, child.last("environment")),
        calls=counts.get("calls"),
        compiled_calls=counts.get("compiled_calls"),
        ending="crashed" if child.crashed else child.ending,
        exit_code=child.code,
        error=child.failure(script=target.kind == "script"),
        traced=_traced(seen.of("lines")),
        compiled=_compiled(seen.of("wrapper")),
        lacks=lacks,
        forms=counts.get("forms", {}),
        factories=factory_targets(target),
        settings=counts.get("settings", {}),
    )


def _traced(entries: Iterable[Entry]) -> dict[str, dict[str, tuple[int, ...]]]:
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


def _compiled(entries: Iterable[Entry]) -> dict[str, tuple[str, ...]]:
    names_by_file: dict[str, set[str]] = {}
    for entry in entries:
        for file, name in entry.get("reaches", ()):
            if whose(file) in REPORTED:
                names_by_file.setdefault(file, set()).add(name)
    return {file: tuple(sorted(names)) for file, names in names_by_file.items()}


def _events(child: Followed, counts: Entry) -> Iterable[Event]:
    records = [
        Record(e["metadata"], e["payload"], e["call"]) for e in child.of("trace")
    ]
    wrappers = [WrapperEvent.from_json(entry) for entry in child.of("wrapper")]
    callables = {event.function for event in wrappers} - {None}
    for event in interpret(records, _counted(child, counts)):
        if event.function and event.function.file.endswith(AROUND_CALLABLES):
            # If only one callable was compiled, the event is about that one.
            only = callables if len(callables) == 1 else [event.function]
            yield replace(event, function=next(iter(only)))
        else:
            yield event
    yield from _wrappers(child.of("wrapper"), counts)
    yield from _bypasses(child, counts)


def _counted(child: Followed, counts: Entry) -> Counted:
    """What the observer counted, by compile id."""

    def ids(kind: str) -> frozenset[str]:
        return frozenset(e["compile_id"] for e in child.of(kind))

    captured = {entry["compile_id"]: entry for entry in child.of("operations")}
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
    captured: Entry | None,
    counts: Entry,
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


def _operations(entry: Entry) -> tuple[Operation, ...]:
    """The operations of a graph, as the child wrote them."""
    stacks = [without_torchproof(frames_in(text)) for text in entry["stacks"]]
    operations = []
    for *written, stack in entry["rows"]:
        fields: list[Any] = [tuple(v) if isinstance(v, list) else v for v in written]
        fields.append(stacks[stack])
        operations.append(Operation(*fields))
    return tuple(operations)


def _wrappers(entries: Iterable[Entry], counts: Entry) -> Iterable[WrapperEvent]:
    """Events for what was compiled, and how often it was called."""
    counts_by_number = {w[0]: w for w in counts.get("wrappers", ())}
    for entry in entries:
        _, calls, compiled, eager, inlined = counts_by_number.get(
            entry["number"], (0, None, None, None, None)
        )
        yield replace(
            WrapperEvent.from_json(entry),
            calls=calls,
            compiled_calls=compiled,
            eager_stance=eager,
            inlined=inlined,
        )


def _bypasses(child: Followed, counts: Entry) -> Iterable[Event]:
    """Events for calls that bypassed the compiled code, and calls that raised."""
    bypasses = dict(enumerate(counts.get("bypasses", ())))
    for entry in child.of("bypass"):
        count = bypasses.get(entry["number"], 1)
        yield replace(BypassEvent.from_json(entry), count=count)
    for entry in child.of("call_error"):
        raised = RaisedError.from_json(entry["raised"])
        yield raised.event(Frame(*entry["function"]), entry["call"])
