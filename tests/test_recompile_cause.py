"""Which guard a recompile is put down to, where several graphs refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from torchproof.observe.trace_log import Record, interpret
from torchproof.records.run import Event

GRAD = "tensor 'x' requires_grad mismatch. expected requires_grad={}"
SEEN = "self.seen == {}"
SIZE = "tensor 'x' size mismatch at index 0. expected {}, actual {}"
FLAG = "self.flag == {}"
OBJECT = "___check_obj_id(L['f'], {}), type=<class 'function'>"


def records(*refusals: Sequence[str], frame: int = 0) -> list[Record]:
    """Recompiles of one function, each as `graph: guard` in torch's order."""
    return [
        Record(
            {
                "artifact": {"name": "recompile_reasons"},
                "frame_id": frame,
                "frame_compile_id": number,
            },
            json.dumps([f"{frame}/{reason}" for reason in reasons]),
        )
        for number, reasons in enumerate(refusals, start=1)
    ]


def recompiled(*refusals: Sequence[str]) -> list[Event]:
    return interpret(records(*refusals))


def sources(events: list[Event]) -> list[str]:
    return [event.data["guard"].source for event in events]


def test_a_value_that_a_refusing_graph_was_made_for_is_not_the_cause() -> None:
    events = recompiled(
        ["0: " + GRAD.format(0)],
        ["1: " + GRAD.format(1), "0: " + SEEN.format(0)],
    )
    assert sources(events) == ["x", "self.seen"]
    assert events[1].data["guard"].graph == "0/0"


def test_where_only_the_combination_is_new_what_had_more_values_goes_on() -> None:
    events = recompiled(
        ["0: " + GRAD.format(0)],
        ["1: " + GRAD.format(1), "0: " + SEEN.format(0)],
        ["2: " + GRAD.format(0), "1: " + SEEN.format(0), "0: " + GRAD.format(0)],
        ["3: " + GRAD.format(1), "2: " + SEEN.format(1), "0: " + SEEN.format(0)],
        ["4: " + SEEN.format(2), "3: " + SEEN.format(1), "0: " + SEEN.format(0)],
    )
    assert sources(events) == ["x"] + ["self.seen"] * 4


@pytest.mark.parametrize(
    ("first", "second"), [(GRAD.format(1), FLAG.format(0)), (FLAG.format(0), "y == 3")]
)
def test_the_first_guard_is_the_cause_where_nothing_decides(
    first: str, second: str
) -> None:
    [event] = recompiled(["1: " + first, "0: " + second])
    assert event.data["guard"].text == first


def test_what_a_graph_was_made_for_shows_in_a_later_refusal() -> None:
    flag = FLAG.format(0)
    refusals = [
        ["0: " + OBJECT.format(10)],
        ["1: " + OBJECT.format(11), "0: " + OBJECT.format(10)],
        ["2: " + OBJECT.format(12), "1: " + flag, "0: " + flag],
    ]
    # Nothing decides between them: the first guard.
    assert sources(recompiled(*refusals)) == ["f", "f", "f"]
    for value, cause in ((13, "f"), (10, "self.flag")):
        later = ["3: " + OBJECT.format(value), "2: " + flag]
        assert sources(recompiled(*refusals, later))[2] == cause


def test_of_two_values_what_is_not_asked_for_is_the_other() -> None:
    events = recompiled(
        ["0: " + OBJECT.format(10)],
        ["1: " + OBJECT.format(11), "0: " + FLAG.format(0)],
    )
    assert sources(events) == ["f", "self.flag"]


def test_a_size_that_has_a_symbol_is_not_the_cause() -> None:
    flag = "1: " + FLAG.format(True)
    events = recompiled(["0: " + SIZE.format(8, 5)], ["0: " + SIZE.format(8, 7), flag])
    assert sources(events) == ["x", "self.flag"]
    static = recompiled(
        ["0: " + SIZE.format(8, 5)],
        ["0: " + SIZE.format(8, 7), flag],
        ["0: " + SIZE.format(8, 6), "1: " + SIZE.format(5, 6), "2: " + flag[3:]],
    )
    assert sources(static)[1] == "x", "graph 1 was made for size 5 alone"


def test_an_attribute_has_no_symbol() -> None:
    events = recompiled(
        ["0: " + SEEN.format(0)], ["0: " + SEEN.format(0), "1: " + FLAG.format(True)]
    )
    assert sources(events) == ["self.seen", "self.seen"]


def test_the_place_is_that_of_the_guard_that_decided() -> None:
    where = '\nUser stack trace:\n  File "m.py", line 7, in forward\n    self.seen += 1'
    refusals = ["1: " + GRAD.format(1), "0: " + SEEN.format(0) + where]
    events = recompiled(["0: " + GRAD.format(0)], refusals)
    assert [[frame.line for frame in event.frames] for event in events] == [[], [7]]


def test_functions_do_not_speak_for_each_other() -> None:
    other = records(["0: " + GRAD.format(0)], frame=1)
    refusals = records(["1: " + GRAD.format(1), "0: " + SEEN.format(0)], frame=2)
    assert sources(interpret(other + refusals)) == ["x", "x"]


def test_the_limit_names_the_guard_that_decided() -> None:
    refusals = records(
        ["0: " + GRAD.format(0)],
        ["1: " + GRAD.format(1), "0: " + SEEN.format(0)],
    )
    metrics = {
        "fail_type": "FailOnRecompileLimitHit",
        "fail_reason": "Dynamo recompile limit exceeded",
    }
    refused = {"compilation_metrics": metrics, "frame_id": 0, "frame_compile_id": 2}
    first, limit = interpret([*refusals, Record(refused)])
    assert (first.kind, limit.kind) == ("recompile", "recompile_limit")
    assert limit.data["guard"].source == "self.seen"
