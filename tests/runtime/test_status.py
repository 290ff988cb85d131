"""What `status` counts, what listeners and the log get, and what a call costs."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from commands import python
from torch import Tensor, nn
from twins import Block, Net, compiled, sample

import torchproof
from torchproof.runtime.function_states import Claim, Function, Refusal, State
from torchproof.runtime.status_report import Fallback

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def fails(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("no such instruction")


def ints(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.long)


def call_all(model: Any, *inputs: Any) -> None:
    for each in inputs:
        with contextlib.suppress(Exception):
            model(each)


# -- the record ------------------------------------------------------------------------


def test_everything_that_happens_is_in_the_record_and_in_json() -> None:
    events: list[tuple[str, Mapping[str, Any]]] = []
    model = compiled(
        Net().eval(),
        verify="first",
        on_event=lambda kind, record: events.append((kind, record)),
    )
    for rows in (2, 2, 3, 4, 5):
        model(sample(rows))
    status = torchproof.status(model)
    assert (status.calls, status.recompiles, status.graph_breaks) == (5, 1, 0)
    first, again = status.compilations
    assert (first.shapes, again.shapes) == ({"x": (2, 4)}, {"x": (3, 4)})
    assert first.cause is None and "'x' size" in str(again.cause)
    assert status.compile_s == pytest.approx(first.seconds + again.seconds, abs=1.0)
    record = json.loads(json.dumps(status.to_json()))
    assert (record["calls"], record["recompiles"]) == (5, 1)
    assert record["compiled_share"] == status.compiled_share
    assert record["compilations"][1]["shapes"] == {"x": [3, 4]}
    assert record["verifications"][0]["verdict"] == "same"
    kinds = sorted(kind for kind, _ in events)
    assert kinds == ["compilation", "compilation", "verification"]
    assert all(json.dumps(record) for _, record in events)
    assert str(status).startswith("Net: full (")


class BreaksBelow(nn.Module):
    """One break, in a method that `forward` calls: Dynamo breaks both graphs."""

    def halved(self, x: Tensor) -> Tensor:
        x = x / 2
        torch._dynamo.graph_break()
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.halved(x.sin()) * 3


class BreaksFirst(nn.Module):
    """Two breaks, one of them before any operation, where there is no graph."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1


@pytest.mark.parametrize(("kind", "breaks"), [(BreaksBelow, 1), (BreaksFirst, 2)])
def test_each_place_of_a_break_counts_once(kind: type[nn.Module], breaks: int) -> None:
    model = torchproof.compile(kind(), backend="eager")
    for rows in (2, 3):
        model(torch.zeros(rows, 2))
    assert torchproof.status(model).graph_breaks == breaks


def test_a_call_of_which_one_graph_ran_eager_does_not_count_as_compiled() -> None:
    graphs = []

    def second_fails(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return fails(gm, inputs) if len(graphs) == 2 else gm.forward

    @torchproof.compile(backend=second_fails)
    def two_graphs(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    for _ in range(4):
        assert torch.equal(two_graphs(sample()), sample() * 2 + 1)
    status = torchproof.status(two_graphs)
    assert (len(status.compilations), len(status.fallbacks)) == (1, 1), status
    assert (status.calls, status.compiled_share) == (4, 0.0)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({}, {}),
        ({"verify": "first"}, {"verified": 1}),
        ({"backend": fails}, {"fallback": 3}),
        ({"strategy": "eager"}, {"strategy": 3}),
        ({"deadline": 1e-9}, {"fallback": 3}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_every_eager_call_has_a_reason(
    options: dict[str, Any], reasons: dict[str, int]
) -> None:
    model = torchproof.compile(net(), **{"backend": "eager"} | options)
    call_all(model, *[torch.ones(2, 4)] * 3)
    status = torchproof.status(model)
    assert status.eager_calls == reasons == status.to_json()["eager_calls"]
    assert status.compiled_calls + sum(reasons.values()) == status.calls == 3


def test_reasons_of_single_calls_and_partial_fallbacks() -> None:
    x = torch.ones(2, 4)
    model = torchproof.compile(net(), backend="eager", wait=False)
    model(x)
    assert torchproof.status(model).eager_calls == {"compiling": 1}
    model = torchproof.compile(net(), backend="eager")
    with torch.compiler.set_stance("force_eager"):
        model(x)
    model(x)
    assert torchproof.status(model).eager_calls == {"disabled": 1}
    with torch.compiler.set_stance("eager_on_recompile"):
        model(x), model(torch.ones(3, 4))
    assert torchproof.status(model).eager_calls == {"disabled": 2}
    model = torchproof.compile(net(), backend="eager", dynamic=False, recompile_limit=1)
    call_all(model, *(torch.ones(n, 4) for n in (2, 3, 4, 2)))
    status = torchproof.status(model)
    assert (status.calls, status.eager_calls) == (4, {"fallback": 1})
    assert [(f.kind, f.partial) for f in status.fallbacks] == [("storm", True)]


# -- calls that eager rejects ----------------------------------------------------------

REJECTED: dict[str, tuple[Any, Any]] = {
    "integers": (net(), ints(2, 4)),
    "shape": (net(), torch.ones(2, 3)),
    "later layer": (nn.Sequential(nn.ReLU(), net()), ints(2, 4)),
    "kernel": (lambda x: F.silu(x + 1), ints(3)),
    "bits": (lambda x: x & 1, torch.ones(2)),
}


@pytest.mark.parametrize("kind", REJECTED)
def test_an_error_of_eager_is_raised_and_nothing_is_compiled(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = REJECTED[kind]
    with pytest.raises(Exception) as expected:
        model(x)
    graphs, events = list[Any](), list[str]()

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    made = torchproof.compile(
        model, backend=backend, on_event=lambda kind, _: events.append(kind)
    )
    for _ in range(2):
        with pytest.raises(type(expected.value)) as raised:
            made(x)
        assert str(raised.value) == str(expected.value)
    status = torchproof.status(made)
    assert (graphs, events, status.compilations, status.fallbacks) == ([], [], (), ())
    assert status.eager_calls == {"raised": 2} and status.calls == 2
    assert not [r for r in caplog.records if r.name == "torchproof"]


def test_rejected_calls_do_not_keep_others_from_compiling() -> None:
    model = torchproof.compile(net(), backend="eager")
    call_all(model, ints(2, 4), torch.ones(2, 4), torch.ones(2, 3), torch.ones(2, 4))
    status = torchproof.status(model)
    assert status.compiled_calls == 2 and status.eager_calls == {"raised": 2}
    assert (status.state, status.fallbacks) == ("compiled", ())


# -- listeners and the log -------------------------------------------------------------

ACTS: dict[str, Callable[[Any], Any]] = {
    "calls": lambda model: model(sample()),
    "retries": torchproof.retry,
    "compiles another": lambda model: compiled(Net())(sample()),
    "raises": lambda model: 1 / 0,
}


@pytest.mark.parametrize(
    ("act", "wait"), [*((act, True) for act in ACTS), ("calls", False)]
)
def test_a_listener_may_use_the_model(act: str, wait: bool) -> None:
    events: list[tuple[str, int]] = []

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        events.append((kind, threading.get_ident()))
        if len(events) == 1:
            ACTS[act](model)

    model = compiled(Block(), backend="eager", on_event=listen, wait=wait, deadline=60)
    expected, end = Block.forward(model, sample()), time.monotonic() + 50
    while not events and time.monotonic() < end:  # no call waits for itself
        assert torch.equal(model(sample()), expected)
        time.sleep(0 if wait else 0.02)
    assert events[0] == ("compilation", threading.get_ident())


def test_a_fallback_is_one_event_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds: list[float] = []

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        assert kind == "fallback"
        seconds.append(torchproof.status(model).compile_s)
        time.sleep(0.2)  # no time of compiling

    model = compiled(Net().eval(), backend=fails, on_event=listen)
    with caplog.at_level(logging.INFO, logger="torchproof"):
        for _ in range(3):
            model(sample())
    [line] = [r.getMessage() for r in caplog.records if r.name == "torchproof"]
    assert "no such instruction" in line and "\n" not in line
    assert seconds == [torchproof.status(model).compile_s]


def test_backends_and_log_handlers_may_call_models() -> None:
    other = compiled(Block(), backend="eager")

    def backend(gm: Any, inputs: Any) -> Any:
        other(sample())
        model(sample())
        raise RuntimeError("planted")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            model(sample())

    model = compiled(Block(), backend=backend)
    expected = Block.forward(model, sample())
    log, handler = logging.getLogger("torchproof"), Handler()
    log.addHandler(handler)
    try:
        assert torch.equal(model(sample()), expected)
    finally:
        log.removeHandler(handler)
    [fallback] = torchproof.status(model).fallbacks
    assert fallback.kind == "compile error"  # and no deadline: nobody waited
    other(sample())
    assert torchproof.status(other).compilations


# -- what a call costs -----------------------------------------------------------------


def test_a_call_adds_one_python_function() -> None:
    """Beside torch's own check: two microseconds allow no more."""
    names: list[str] = []
    model = compiled(Block(), backend="eager")
    model(sample())
    run = model.forward.run
    model.forward.run = lambda *args, **kwargs: None

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        model.forward(1)
    finally:
        sys.setprofile(None)
        model.forward.run = run
    assert names[1] == "is_dynamo_compiling" and names[2].endswith("<lambda>")
    assert len(names) == 3


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
    done = python(LOADED)
    assert done.stdout == "[] ['records', 'runtime']\n", done.stderr


# -- states of functions ---------------------------------------------------------------


def test_a_function_is_paused_for_twice_as_many_calls_each_time() -> None:
    function = Function(sample.__code__)
    for calls in (2, 4, 8):
        function.trace(Claim())
        function.pause(100)
        function.end_trace()
        assert function.is_paused(99 + calls) and function.state is State.PAUSED
        assert not function.is_paused(100 + calls) and function.state is State.OPEN


def test_what_was_decided_while_a_function_is_traced_stays() -> None:
    refusal = Refusal(inner=False, item=Fallback("storm", "it", "why"))
    function = Function(sample.__code__)
    function.trace(Claim())
    assert function.state is State.TRACED
    function.refuse(refusal)
    function.end_trace()
    assert function.state is State.REFUSED and function.claim is None
    assert function.refusal is refusal
    function.open()
    assert (function.state, function.refusal) == (State.OPEN, None)


def test_the_documents_have_every_state() -> None:
    table = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`[A-Z`, ]+) \|.*\| `([A-Z]+)` \|$", table, re.M)
    begins = {name for first, _ in rows for name in re.findall(r"[A-Z]+", first)}
    assert begins == {last for _, last in rows} == {each.name for each in State}
