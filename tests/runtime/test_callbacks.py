"""Code of others that torchproof runs may do anything with the model, without waiting.

Listeners and log handlers run after the call has its answer, in the thread of the call.
Backends and signal handlers run in the middle of compiling, and what they call is not
compiled.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from twins import Net, compiled, sample

import torchproof

pytestmark = pytest.mark.usefixtures("fresh_compiler")
DEADLINE_S = 60.0  # that a call which waits for itself would take
PATIENCE_S = 25.0


@pytest.fixture(autouse=True)
def no_call_waits() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < PATIENCE_S


def broken(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("no such instruction")


Act = Callable[[Any], Any]
ACTS: dict[str, Act] = {
    "calls": lambda model: model(sample()),
    "calls with another size": lambda model: model(sample(7)),
    "asks for the status": torchproof.status,
    "retries": torchproof.retry,
    "compiles it again": lambda model: compiled(model)(sample()),
    "compiles another": lambda model: compiled(Net())(sample()),
    "calls in a thread": lambda model: in_a_thread(lambda: model(sample())),
    "raises": lambda model: 1 / 0,
}

QUICK = ("calls", "retries", "compiles another", "raises")


def in_a_thread(act: Callable[[], Any]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "act", [a if a in QUICK else pytest.param(a, marks=pytest.mark.slow) for a in ACTS]
)
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("eager", id="compiles"),
        pytest.param(broken, id="fails", marks=pytest.mark.slow),
    ],
)
def test_a_listener_may_use_the_model(act: str, backend: Any) -> None:
    told: list[str] = []

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        told.append(kind)
        if len(told) == 1:
            ACTS[act](model)

    given: dict[str, Any] = {"on_event": listen, "deadline": DEADLINE_S}
    model = compiled(Net().eval(), backend=backend, **given)
    expected = model.__class__.forward(model, sample())
    answer = model(sample())
    assert torch.equal(answer, expected)
    assert told[:1] == ["compilation" if backend == "eager" else "fallback"]


@pytest.mark.parametrize("act", ["calls", "compiles another", "raises"])
def test_a_log_handler_may_use_the_model(act: str) -> None:
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if len(lines) == 1:
                ACTS[act](model)

    model = compiled(Net().eval(), backend=broken, deadline=DEADLINE_S)
    log, handler = logging.getLogger("torchproof"), Handler()
    log.addHandler(handler)
    try:
        answer = model(sample())
    finally:
        log.removeHandler(handler)
    assert torch.equal(answer, model.__class__.forward(model, sample()))
    assert len(lines) >= 1 and "no such instruction" in lines[0]


def test_a_listener_runs_in_the_thread_of_the_call_once_it_has_its_answer() -> None:
    threads: list[int] = []
    model = compiled(
        Net().eval(), on_event=lambda *_: threads.append(threading.get_ident())
    )
    model(sample())
    assert threads == [threading.get_ident()]


def test_what_a_listener_takes_is_no_time_of_compiling() -> None:
    spent: list[float] = []

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        spent.append(torchproof.status(model).compile_s)
        time.sleep(0.2)

    model = compiled(Net().eval(), backend=broken, on_event=listen, deadline=60)
    model(sample())
    assert spent == [torchproof.status(model).compile_s]


def test_events_of_nested_calls_come_in_order_and_none_is_lost() -> None:
    told: list[tuple[str, int]] = []
    depth = 0

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        nonlocal depth
        depth += 1
        told.append((kind, depth))
        if len(told) < 4:
            compiled_for(len(told))
        depth -= 1

    def compiled_for(rows: int) -> None:
        model.train(rows % 2 == 1)  # another guard, another compilation
        model(sample())

    model = compiled(Net().eval(), on_event=listen)
    model(sample())
    compilations = torchproof.status(model).compilations
    assert len(compilations) > 1
    assert told == [("compilation", 1)] * len(compilations)


def test_a_listener_without_waiting_may_call_the_model() -> None:
    called = threading.Event()

    def listen(kind: str, record: Mapping[str, Any]) -> None:
        if not called.is_set():
            model(sample())
            called.set()

    model = compiled(Net().eval(), on_event=listen, wait=False, deadline=DEADLINE_S)
    while not torchproof.status(model).compilations:
        model(sample())
        time.sleep(0.02)
    model(sample())
    assert called.wait(PATIENCE_S)


def test_a_backend_may_call_the_model_it_compiles_and_others() -> None:
    other = compiled(Net().eval(), deadline=DEADLINE_S)

    def backend(gm: Any, inputs: Any) -> Any:
        other(sample())
        model(sample())
        return gm.forward

    model = compiled(Net().eval(), backend=backend, deadline=DEADLINE_S)
    expected = model.__class__.forward(model, sample())
    assert torch.equal(model(sample()), expected)
    assert torchproof.status(model).compilations
    other(sample())
    assert torchproof.status(other).compilations


def test_a_signal_handler_may_call_the_model_that_is_compiled() -> None:
    answers: list[torch.Tensor] = []

    def handle(number: int, frame: Any) -> None:
        answers.append(model(sample()))

    def backend(gm: Any, inputs: Any) -> Any:
        if not answers:
            os.kill(os.getpid(), signal.SIGUSR2)
            until = time.monotonic() + PATIENCE_S
            while not answers and time.monotonic() < until:
                time.sleep(0.01)
        return gm.forward

    model = compiled(Net().eval(), backend=backend, deadline=DEADLINE_S)
    before = signal.signal(signal.SIGUSR2, handle)
    try:
        answer = model(sample())
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert len(answers) == 1 and torch.equal(answers[0], answer)
