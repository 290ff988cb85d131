"""Events: an observation gives those of a class; a record becomes a complete event."""

from __future__ import annotations

import json

from torchproof.observe.trace_log import Counted, Record, interpret
from torchproof.records import (
    BreakEvent,
    DeadTensorEvent,
    EagerErrorEvent,
    Event,
    FailureEvent,
    Frame,
    GraphEvent,
    GuardEvent,
    LimitEvent,
    Observation,
    RaisedError,
    RaisedEvent,
    RecompileEvent,
    Runs,
)


def test_events_of_classes_come_in_the_order_in_which_they_happened() -> None:
    events: tuple[Event, ...] = (RecompileEvent(), GraphEvent(), LimitEvent())
    recompile, graph, limit = events
    seen = Observation(events, {})
    assert seen.of(GraphEvent) == (graph,)
    assert seen.of(GuardEvent) == (recompile, limit)
    assert seen.of(LimitEvent, GraphEvent) == (graph, limit)
    assert seen.of(BreakEvent) == ()


SKIPPED = "Attempt to trace generator"


def failed(reason: str, counted: Counted | None = None) -> list[Event]:
    """The events of one compilation that failed without a break."""
    metrics = {"fail_type": "Unsupported", "fail_reason": reason}
    record = Record(
        {"compilation_metrics": metrics, "frame_id": 0, "frame_compile_id": 0}
    )
    return [*interpret([record], counted)]


def test_a_frame_that_is_skipped_without_a_break_is_one_that_torch_did_not_log() -> (
    None
):
    for events in (
        failed(SKIPPED),  # a trace: inferred from the reason
        failed("no reason", Counted(raised=frozenset(), skips={"0/0": Runs(3, 2)})),
    ):
        [event] = events
        assert isinstance(event, BreakEvent) and event.skips and not event.logged
    assert event.runs == Runs(3, 2)


def test_a_failure_that_raises_is_an_error() -> None:
    [read] = failed("no reason")
    [seen] = failed(SKIPPED, Counted(raised=frozenset({"0/0"})))
    assert isinstance(read, FailureEvent) and read.raised is None
    assert isinstance(seen, FailureEvent) and seen.raised is True
    both = frozenset({"0/0"})
    [own] = failed("no reason", Counted(raised=both, in_eager=both))
    assert isinstance(own, EagerErrorEvent)


OVERWRITTEN = (
    "accessing {}tensor output of CUDAGraphs that has been overwritten by a subsequent"
    ' run. Stack trace:\n  File "model.py", line 3, in step\n    y = f(x)\n'
)


def test_an_error_about_overwritten_memory_is_a_read_of_it() -> None:
    stack = (("train.py", 9, "loop"),)
    for role, word in (("output", ""), ("gradient", "gradient ")):
        text = OVERWRITTEN.format(word)
        event = RaisedError("RuntimeError", text, None, stack).event(None, 4)
        assert isinstance(event, DeadTensorEvent)
        assert (event.role, event.call, event.raised) == (role, 4, text)
        assert [(f.file, f.line) for f in event.frames] == [("model.py", 3)]
        assert event.reader == (Frame("train.py", 9, "loop"),)
    while_compiling = RaisedError("RuntimeError", text, "frame", stack).event(None)
    assert isinstance(while_compiling, RaisedEvent)


def test_an_event_of_an_answer_survives_json() -> None:
    from torchproof.measure.replies import Facts
    from torchproof.records import FormDifference, StaleAnswerEvent, WrongAnswerEvent

    form = FormDifference("output", "strides", "(2, 1), not (1, 2)", harmful=True)
    facts = Facts(
        wrong=(WrongAnswerEvent(frames=(Frame("m.py", 1, "f"),), form=form),),
        stale=(StaleAnswerEvent(what="clock", name="time.time"),),
    )
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
