"""Which guard a recompile is put down to, where several graphs refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from torchproof.observe.trace_log import Record, interpret
from torchproof.records import CompileEvent, GuardEvent, LimitEvent, RecompileEvent

GRAD = "tensor 'x' requires_grad mismatch. expected requires_grad={}"
SEEN = "self.seen == {}"
SIZE = "tensor 'x' size mismatch at index 0. expected {}, actual {}"
FLAG = "self.flag == {}"
OBJECT = "___check_obj_id(L['f'], {}), type=<class 'function'>"
WHERE = '\nUser stack trace:\n  File "m.py", line 7, in forward\n    self.seen += 1'


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


def sources(events: list[CompileEvent]) -> list[str]:
    guards = [event.guard for event in events if isinstance(event, GuardEvent)]
    return [guard.source for guard in guards if guard]


# The first graph was made without gradients, the second for the first value.
TWO = (["0: " + GRAD.format(0)], ["1: " + GRAD.format(1), "0: " + SEEN.format(0)])
OBJECTS = (
    ["0: " + OBJECT.format(10)],
    ["1: " + OBJECT.format(11), "0: " + OBJECT.format(10)],
    ["2: " + OBJECT.format(12), "1: " + FLAG.format(0), "0: " + FLAG.format(0)],
)
SIZES = (
    ["0: " + SIZE.format(8, 5)],
    ["0: " + SIZE.format(8, 7), "1: " + FLAG.format(True)],
)
# Recompiles of one function, and the source of the guard that each is put down to.
CASES: dict[str, tuple[tuple[Sequence[str], ...], list[str]]] = {
    "a value that a refusing graph was made for is not the cause": (
        TWO,
        ["x", "self.seen"],
    ),
    "where only the combination is new, what had more values goes on": (
        (
            *TWO,
            ["2: " + GRAD.format(0), "1: " + SEEN.format(0), "0: " + GRAD.format(0)],
            ["3: " + GRAD.format(1), "2: " + SEEN.format(1), "0: " + SEEN.format(0)],
            ["4: " + SEEN.format(2), "3: " + SEEN.format(1), "0: " + SEEN.format(0)],
        ),
        ["x"] + ["self.seen"] * 4,
    ),
    "the first guard, where nothing decides": (
        (["1: " + GRAD.format(1), "0: " + FLAG.format(0)],),
        ["x"],
    ),
    "the first guard, in the other order": (
        (["1: " + FLAG.format(0), "0: y == 3"],),
        ["self.flag"],
    ),
    "nothing decides between the graphs of one object each": (OBJECTS, ["f"] * 3),
    "a later refusal shows that no graph was made for the object": (
        (*OBJECTS, ["3: " + OBJECT.format(13), "2: " + FLAG.format(0)]),
        ["f", "f", "f", "f"],
    ),
    "a later refusal shows that a graph was made for the object": (
        (*OBJECTS, ["3: " + OBJECT.format(10), "2: " + FLAG.format(0)]),
        ["f", "f", "self.flag", "f"],
    ),
    "of two values, the one that the other graph does not ask for": (
        (OBJECTS[0], ["1: " + OBJECT.format(11), "0: " + FLAG.format(0)]),
        ["f", "self.flag"],
    ),
    "a size that has a symbol is not the cause": (SIZES, ["x", "self.flag"]),
    "a size that a graph was made for alone is": (
        (
            *SIZES,
            [
                "0: " + SIZE.format(8, 6),
                "1: " + SIZE.format(5, 6),
                "2: " + FLAG.format(True),
            ],
        ),
        ["x", "x", "self.flag"],
    ),
    "an attribute has no symbol": (
        (
            ["0: " + SEEN.format(0)],
            ["0: " + SEEN.format(0), "1: " + FLAG.format(True)],
        ),
        ["self.seen", "self.seen"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_recompile_is_put_down_to_the_guard_that_decided(case: str) -> None:
    refusals, causes = CASES[case]
    assert sources(interpret(records(*refusals))) == causes


def test_place_and_graph_are_those_of_the_guard_that_decided() -> None:
    placed = ["1: " + GRAD.format(1), "0: " + SEEN.format(0) + WHERE]
    first, second = interpret(records(TWO[0], placed))
    assert not first.frames and [frame.line for frame in second.frames] == [7]
    assert second.guard and second.guard.graph == "0/0"


def test_functions_do_not_speak_for_each_other() -> None:
    other, refusals = records(TWO[0], frame=1), records(TWO[1], frame=2)
    assert sources(interpret(other + refusals)) == ["x", "x"]


def test_the_limit_names_the_guard_that_decided() -> None:
    metrics = {
        "fail_type": "FailOnRecompileLimitHit",
        "fail_reason": "Dynamo recompile limit exceeded",
    }
    refused = {"compilation_metrics": metrics, "frame_id": 0, "frame_compile_id": 2}
    first, limit = interpret([*records(*TWO), Record(refused)])
    assert isinstance(first, RecompileEvent) and isinstance(limit, LimitEvent)
    assert limit.guard is not None
    assert limit.guard.source == "self.seen"
