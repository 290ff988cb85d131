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
    frames_of,
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
    callables = {tuple(e["code"][0]) for e in child.of("wrapper") if e["code"]}
    for event in interpret(records, _counted(child, counts)):
        if event.function and event.function.file.endswith(AROUND_CALLABLES):
            # If only one callable was compiled, the event is about that one.
            yield replace(event, function=_only(callables) or event.function)
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
        yield WrapperEvent(
            frames=frames_of(entry.get("site", ())),
            function=next(iter(frames_of(entry["code"])), None),
            **{name: entry[name] for name in _WRAPPER_FIELDS if name in entry},
            around=frames_of(entry.get("around", ())),
            calls=calls,
            compiled_calls=compiled,
            eager_stance=eager,
            inlined=inlined,
        )


def _bypasses(child: Followed, counts: Entry) -> Iterable[Event]:
    """Events for calls that bypassed the compiled code, and calls that raised."""
    bypasses = dict(enumerate(counts.get("bypasses", ())))
    for entry in child.of("bypass"):
        yield BypassEvent(
            frames=frames_of(entry["site"]),
            model=entry["model"],
            module=entry["module"],
            method=entry["method"],
            count=bypasses.get(entry["number"], 1),
        )
    for entry in child.of("call_error"):
        raised = RaisedError.from_json(entry["raised"])
        yield raised.event(Frame(*entry["function"]), entry["call"])


def _only(callables: Iterable[tuple[Any, ...]]) -> Frame | None:
    frames = frames_of(callables)
    return frames[0] if len(frames) == 1 else None
