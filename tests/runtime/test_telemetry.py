"""What is counted, logged and told of a compiled model, and what that costs a call."""

from __future__ import annotations

import functools
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from twins import Net, compiled, sample

import torchproof
from torchproof.runtime.compiled_forward import CompiledForward
from torchproof.runtime.method_replacement import Options
from torchproof.runtime.status_report import Fallback
from torchproof.runtime.telemetry import Telemetry

THREADS, CALLS = 8, 500


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def broken(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("no such instruction")


def test_everything_that_happens_is_in_the_record_and_in_json() -> None:
    told: list[tuple[str, Mapping[str, Any]]] = []
    model = compiled(
        Net().eval(),
        monitor=True,
        verify="first",
        on_event=lambda kind, record: told.append((kind, record)),
    )
    for rows in (2, 2, 3, 4, 5):
        model(sample(rows))
    status = torchproof.status(model)
    assert status.calls == 5 and status.recompiles == 1
    assert [item.shapes for item in status.compilations] == [
        {"x": (2, 4)},
        {"x": (3, 4)},
    ]
    first, again = status.compilations
    assert first.cause is None and "'x' size" in str(again.cause)
    assert first.seconds > 0 and again.seconds > 0
    assert status.compile_s == pytest.approx(first.seconds + again.seconds, abs=1.0)
    record = json.loads(json.dumps(status.to_json()))
    assert record["calls"] == 5 and record["recompiles"] == 1
    assert record["compiled_share"] == status.compiled_share
    assert record["compilations"][1]["shapes"] == {"x": [3, 4]}
    assert record["verifications"][0]["verdict"] == "same"
    assert set(record["latency"]) == {"compiled"}
    kinds = [kind for kind, _ in told]
    assert sorted(kinds) == ["compilation", "compilation", "verification"]
    assert all(json.dumps(record) for _, record in told)
    text = str(status)
    assert "5 calls" in text and "1 recompile" in text and "x 2x4" in text


def test_a_fallback_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    model = compiled(
        Net().eval(), backend=broken, on_event=lambda kind, _: told.append(kind)
    )
    with caplog.at_level(logging.INFO, logger="torchproof"):
        for _ in range(3):
            model(sample())
    lines = [r.getMessage() for r in caplog.records if r.name == "torchproof"]
    assert len(lines) == 1 and "no such instruction" in lines[0]
    assert told == ["fallback"]
    status = torchproof.status(model)
    assert status.calls == 3 and status.compiled_calls == 0
    assert status.compiled_share == 0.0


def test_the_share_counts_calls_of_which_anything_ran_eager() -> None:
    """One of two graphs fails: no call of the function is compiled as a whole."""
    seen = []

    def second_breaks(gm: Any, inputs: Any) -> Any:
        seen.append(gm)
        return broken(gm, inputs) if len(seen) == 2 else gm.forward

    @torchproof.compile(backend=second_breaks)
    def two_graphs(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    for _ in range(4):
        torch.testing.assert_close(two_graphs(sample()), sample() * 2 + 1)
    status = torchproof.status(two_graphs)
    assert len(status.compilations) == 1 and len(status.fallbacks) == 1, str(status)
    assert status.calls == 4 and status.compiled_share == 0.0
    whole = compiled(lambda x: x * 2)
    for _ in range(4):
        whole(sample())
    assert torchproof.status(whole).compiled_share == 1.0


@pytest.mark.parametrize(
    ("stance", "compiled_calls"), [("force_eager", 2), ("eager_on_recompile", 3)]
)
def test_calls_that_a_stance_makes_eager_are_not_called_compiled(
    stance: str, compiled_calls: int
) -> None:
    model = compiled(Net().eval())
    model(sample(2))
    with torch.compiler.set_stance(stance):
        model(sample(2))
        model(sample(3))
    model(sample(2))
    status = torchproof.status(model)
    assert (status.calls, status.compiled_calls) == (4, compiled_calls), status
    assert [stance in note for note in status.notes] == [True], status
    clean = compiled(Net().eval())
    with torch.compiler.set_stance("default"):
        clean(sample(2))
    assert torchproof.status(clean).compiled_calls == 1
    assert not any("stance" in note for note in torchproof.status(clean).notes)


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_stances_that_compile_later_do_not_bypass_the_deadline(stance: str) -> None:
    model = compiled(Net().eval())
    with torch.compiler.set_stance(stance):
        answers = [model(sample(2)) for _ in range(2)]
    assert all(torch.equal(each, Net.forward(model, sample(2))) for each in answers)
    assert torchproof.status(model).compiled_calls == 2


def decorated(breaks: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def around(*args: Any) -> Any:
            if breaks:
                torch._dynamo.graph_break()
            return forward(*args)

        return around

    return decorate


@pytest.mark.parametrize("breaks", [True, False])
def test_a_decorator_without_a_graph_is_not_called_the_method(breaks: bool) -> None:
    class Decorated(Net):
        forward = decorated(breaks)(Net.forward)

    model = compiled(Decorated().eval())
    model(sample())
    status = torchproof.status(model)
    assert [item.graphs for item in status.compilations] == [1], status
    about = [note for note in status.notes if "no compiled graph" in note]
    assert len(about) == breaks, status
    for note in about:
        assert re.match(r".*around \(test_telemetry.py:\d+\), the decorator of", note)
        assert "before its first graph break" in note


def test_a_callback_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(kind: str, record: Mapping[str, Any]) -> None:
        raise ValueError("no metrics today")

    model = compiled(Net().eval(), on_event=fail)
    with caplog.at_level(logging.ERROR, logger="torchproof"):
        model(sample())
    assert torchproof.status(model).compiled_share == 1.0
    failed = [r for r in caplog.records if "on_event" in r.getMessage()]
    assert len(failed) == 1 and failed[0].exc_info is not None


def test_nothing_grows_without_end() -> None:
    telemetry = Telemetry("Net", None)
    for number in range(3000):
        telemetry.fell_back(Fallback("storm", f"graph {number}", "again"))
        telemetry.note(f"note {number}")
    assert len(telemetry.fallbacks) == len(telemetry.notes) == 1000
    assert telemetry.fallbacks[-1].what == "graph 2999"


def entry_around(run: Any) -> CompiledForward:
    """An entry that is past its first call, without a compiler."""
    entry = CompiledForward(None, "__call__", run, Options("full", "a test", 1.0))
    entry.run = run
    return entry


def test_calls_are_counted_right_with_threads() -> None:
    def run(turn: int, number: int) -> int:
        if turn % 10 == number:
            entry.telemetry.ran_eager("fallback")
            entry.telemetry.ran_eager("fallback")  # of a call, once
        return turn

    entry = entry_around(run)

    def work(number: int) -> None:
        for turn in range(CALLS):
            assert entry(turn, number) == turn
        entry.telemetry.ran_eager("fallback")  # in no call

    workers = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    telemetry = entry.telemetry
    assert telemetry.calls == THREADS * CALLS
    assert telemetry.calls == THREADS * CALLS  # looking takes no number
    assert telemetry.compiled_calls == THREADS * (CALLS - CALLS // 10)


def test_a_call_has_its_own_number_in_and_after_a_nested_one() -> None:
    numbers: list[int | None] = []

    def run(depth: int) -> None:
        numbers.append(entry.telemetry.call)
        if depth:
            other(0)
            entry(depth - 1)
        numbers.append(entry.telemetry.call)

    entry, other = entry_around(run), entry_around(lambda depth: None)
    other(0)
    entry(2)
    assert numbers == [0, 1, 2, 2, 1, 0]
    assert entry.telemetry.call is None
    assert (entry.telemetry.calls, other.telemetry.calls) == (3, 3)


def test_what_a_call_adds_in_python() -> None:
    """Counted, not timed: two frames, and a number for the call."""
    seen: list[str] = []

    def target(x: int, *, plus: int) -> int:
        return x + plus

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)
        elif event == "c_call" and argument is not sys.setprofile:
            seen.append(argument.__name__)

    entry = entry_around(target)
    sys.setprofile(note)
    try:
        entry(1, plus=2)
    finally:
        sys.setprofile(None)
    added = ["CompiledForward.__call__", "is_dynamo_compiling", "next"]
    assert seen == [*added, target.__qualname__]


LOADED = """
import sys, torch
before = set(sys.modules)
import torchproof.runtime
from torchproof import compile, plan, retry, status
gained = set(sys.modules) - before
heavy = {"torch._dynamo", "torch._inductor", "rich", "libcst", "psutil", "jinja2"}
rooms = {name.split(".")[1] for name in gained if name.startswith("torchproof.")}
print(sorted(heavy & gained), sorted(rooms))
"""


def test_loading_the_runtime_loads_no_compiler_and_no_diagnosis() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] ['records', 'runtime']\n"
