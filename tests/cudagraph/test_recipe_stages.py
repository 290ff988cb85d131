"""Recipes with a graph and `wait=False`: recordings answer while the code is made."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import graph_models
import pytest
import torch
from graph_models import Net
from stage_compiler import Compiler, join_stages
from torch import Tensor, nn
from torch._dynamo import convert_frame

import torchproof
from torchproof.runtime.cudagraph import progressive, recorder

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def applied(
    name: str, kind: type[nn.Module] = Net, **settings: Any
) -> tuple[nn.Module, nn.Module]:
    return graph_models.applied(name, kind, wait=False, **settings)


def answers(model: nn.Module, plain: nn.Module, calls: int) -> None:
    """Calls it with fresh inputs; every answer is that of the plain model."""
    for _ in range(calls):
        x = torch.randn(2, 4)
        with torch.no_grad():
            torch.testing.assert_close(model(x), plain(x))
        join_stages()


def settle(model: nn.Module, plain: nn.Module) -> None:
    """Calls until no stage is under way; they wait for what compiles in a thread."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        answers(model, plain, 1)
        found = {*states(model).values()}
        if found and not {"waiting", "compiling"} & found:
            return
        time.sleep(0.02)


def graph_of(model: nn.Module) -> dict[str, Any]:
    graph = torchproof.status(model).graph
    assert graph is not None
    return dict(graph)


def states(model: nn.Module) -> dict[str, str]:
    return {each["strategy"]: each["state"] for each in graph_of(model)["stages"]}


def test_recordings_answer_until_the_code_is_ready(compiler: Compiler) -> None:
    name = "nested"
    plain, model = applied(f"{name}+graph", deadline=40)
    compiler.released.clear()
    answers(model, plain, 6)
    assert states(model) == {"eager": "in use", name: "compiling"}
    compiler.released.set()
    answers(model, plain, 6)
    assert states(model) == {"eager": "replaced", name: "in use"}
    found = torchproof.status(model)
    assert found.strategy == f"{name}+graph" and not found.fallbacks
    assert not found.notes and not found.compilations
    assert found.graph is not None and found.graph["replays"] == 11
    assert found.calls == 12 and found.compiled_calls == 11
    assert compiler.runs and compiler.limit_s is not None and compiler.limit_s <= 40
    assert f"{name}  " in str(found) and "replaced" in str(found)


def test_calls_in_inference_mode_get_compiled_code(compiler: Compiler) -> None:
    plain, model = applied("full+graph")
    for _ in range(2):
        with torch.inference_mode():
            answers(model, plain, 10)
        answers(model, plain, 10)  # recordings of their own
    stages = graph_of(model)["stages"]
    found = [(each["strategy"], each["state"]) for each in stages]
    assert found == 2 * [("eager", "replaced"), ("full", "in use")]


def test_a_stage_that_takes_too_long_is_not_used(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_: Any) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pass

    plain, model = applied("full+graph", deadline=0.5)
    answers(model, plain, 2)
    monkeypatch.setattr(recorder._Attempt, "trace", hangs)
    answers(model, plain, 4)
    assert states(model) == {"eager": "in use", "full": "failed"}
    assert "deadline of 0.5 s" in graph_of(model)["stages"][-1]["why"]


class Counting(nn.Module):
    """Its state shows how often it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


def test_a_stage_whose_timing_fails_leaves_no_effects(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(old: Any, new: Any, call: Any) -> tuple[float, float]:
        new.start(call)
        raise RuntimeError("no clock")

    monkeypatch.setattr(progressive, "timed", fails)
    model = Counting().eval()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, wait=False, strategy="full")
    answers(graphed, twin, 10)
    assert {each.state for each in graphed.status().stages} == {"in use", "failed"}
    assert graphed.status().stages[1].why == "RuntimeError: no clock"


def test_verify_compares_the_code_once_it_is_there(compiler: Compiler) -> None:
    plain, model = applied("full+graph", verify="first")
    compiler.released.clear()
    answers(model, plain, 6)
    assert not torchproof.status(model).verifications
    compiler.released.set()
    answers(model, plain, 6)
    (found,) = torchproof.status(model).verifications
    assert found["verdict"] == "same" and states(model)["full"] == "in use"


class Waiting(Net):
    """Reads a value on the host, which no recording can repeat."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(x.sum() > 0)


@pytest.mark.slow
def test_what_cannot_be_recorded_is_compiled_without_a_graph() -> None:
    plain, model = applied("full+graph", Waiting)
    until = time.monotonic() + 300
    while time.monotonic() < until and not torchproof.status(model).compiled_calls:
        answers(model, plain, 1)
        time.sleep(0.1)
    found = torchproof.status(model)
    assert found.graph is not None and found.graph["replays"] == 0
    assert found.graph["stops"][0]["kind"] == "host_sync", str(found)
    assert found.compilations and not states(model), str(found)
    assert 0 < found.compiled_calls < found.calls


def test_recordings_outlive_a_compilation_in_another_thread(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile torch replaces methods of its own classes."""
    plain, model = applied("full+graph")
    settle(model, plain)
    before = graph_of(model)
    get = nn.Module.__getattr__
    with compiling_elsewhere():
        monkeypatch.setattr(nn.Module, "__getattr__", lambda *args: get(*args))
        answers(model, plain, 8)
        monkeypatch.undo()
    replays = graph_of(model)["replays"]
    answers(model, plain, 3)
    found = graph_of(model)
    assert found["recordings"] == before["recordings"] and not found["changes"]
    assert found["replays"] == replays + 3


@contextlib.contextmanager
def compiling_elsewhere() -> Iterator[None]:
    """Another thread holds torch's compile lock."""
    held, end = threading.Event(), threading.Event()

    def compile_something() -> None:
        with convert_frame.compile_lock:
            held.set()
            assert end.wait(60)

    thread = threading.Thread(target=compile_something)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_no_call_waits_for_a_compilation_in_another_thread(compiler: Compiler) -> None:
    plain, model = applied("full+graph")
    with compiling_elsewhere():
        answers(model, plain, 3)
        assert graph_of(model)["replays"] == 0
    answers(model, plain, 1)
    with compiling_elsewhere():
        answers(model, plain, 6)
        assert states(model) == {"eager": "in use", "full": "waiting"}
        assert graph_of(model)["replays"] == 7
    settle(model, plain)
    assert states(model) == {"eager": "replaced", "full": "in use"}
