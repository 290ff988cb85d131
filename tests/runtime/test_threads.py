"""Threads that call compiled models at once: right answers and counts, no deadlock."""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from twins import Net, compiled, sample, twins

import torchproof
from torchproof.runtime.status_report import Status

THREADS = 6
AGES_S = 300.0  # long enough for any machine

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What each thread's work gives; all begin together, and all must end."""
    start, answers = threading.Barrier(threads), [None] * threads
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(AGES_S)
            answers[number] = work(number)
        except BaseException as error:
            errors.append(error)

    workers = [
        threading.Thread(target=run, args=(number,), daemon=True)
        for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(AGES_S)
        assert not worker.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return answers


def test_first_calls_and_later_ones_of_one_model() -> None:
    plain, model = twins(Net().eval())

    def work(number: int) -> None:
        for _ in range(5):
            x = sample(3, seed=number)
            torch.testing.assert_close(model(x), plain(x))

    at_once(work)
    told = torchproof.status(model)
    assert told.calls == 5 * THREADS and not told.fallbacks, str(told)
    # Those that come while it compiles run eager, rather than compile it again; one
    # that comes in between the end of that and its use may.
    assert len(told.compilations) <= 2, str(told)
    at_once(work)
    later = torchproof.status(model)
    assert later.calls == 10 * THREADS
    assert later.compilations == told.compilations
    assert later.compiled_calls == told.compiled_calls + 5 * THREADS


def test_regions_are_found_once() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.tanh(self.mix(x))

    plain, model = twins(
        nn.Sequential(*(Block() for _ in range(3))), strategy="regional"
    )

    def work(number: int) -> None:
        for _ in range(4):
            x = sample(seed=number)
            torch.testing.assert_close(model(x), plain(x))

    at_once(work)
    told = torchproof.status(model)
    assert told.calls == 4 * THREADS and not told.fallbacks, str(told)
    assert told.compilations and "Block" in told.compilations[0].function


@pytest.mark.slow
def test_different_models_at_once() -> None:
    pairs = [twins(Net().eval()) for _ in range(3)]

    def work(number: int) -> None:
        plain, model = pairs[number]
        for seed in range(3):
            x = sample(2 + number, seed=seed)
            torch.testing.assert_close(model(x), plain(x))

    at_once(work, len(pairs))
    for _, model in pairs:
        told = torchproof.status(model)
        assert told.calls == told.compiled_calls == 3, str(told)
        assert len(told.compilations) == 1, str(told)


@pytest.mark.slow
def test_each_thread_has_its_own_modes() -> None:
    plain, model = twins(Net().eval())

    def work(number: int) -> None:
        x = sample(seed=number)
        for _ in range(3):
            with (
                torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 0),
                torch.set_grad_enabled(number % 3 == 0),
            ):
                answer, expected = model(x), plain(x)
            assert answer.requires_grad is (number % 3 == 0)
            torch.testing.assert_close(answer, expected)

    at_once(work)
    for number in range(THREADS):  # what ran eager while another was compiled
        work(number)
    told = torchproof.status(model)
    assert 4 <= len(told.compilations) < THREADS and not told.fallbacks, str(told)


@pytest.mark.slow
def test_threads_with_sizes_of_their_own_and_errors() -> None:
    plain, model = twins(Net().eval())

    def work(number: int) -> None:
        for turn in range(4):
            x = sample(2 + (number + turn) % 3, seed=number)
            if number == 0:
                with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                    model(torch.ones(2, 3))
            torch.testing.assert_close(model(x), plain(x))

    at_once(work)
    told = torchproof.status(model)
    assert told.calls == 4 * THREADS + 4
    assert not told.fallbacks, str(told)


def test_training_in_threads() -> None:
    pairs = [twins(Net().eval()) for _ in range(2)]

    def work(number: int) -> None:
        for one in pairs[number]:
            for seed in range(2):
                one(sample(seed=seed)).square().sum().backward()

    at_once(work, len(pairs))
    for plain, model in pairs:
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)


def test_a_function_called_before_and_inside_another_thread() -> None:
    function = compiled(lambda x: x * 2)
    function(sample())
    answers = at_once(lambda number: function(sample(seed=number)))
    for number, answer in enumerate(answers):
        torch.testing.assert_close(answer, sample(seed=number) * 2)
    assert len(torchproof.status(function).compilations) == 1


def test_flags_of_the_compiler_are_those_of_the_thread_that_compiles() -> None:
    """Torch has one flag for all threads: here another thread asks meanwhile."""
    traces, may_go_on = threading.Event(), threading.Event()
    inside: list[bool] = []

    def backend(gm: Any, inputs: Any) -> Any:
        class Tracer(torch.fx.Tracer):
            def create_arg(self, a: Any) -> Any:
                inside.append(torch.compiler.is_compiling())
                inside.append(torch.fx._symbolic_trace.is_fx_tracing())
                traces.set()
                may_go_on.wait(AGES_S)
                return super().create_arg(a)

        Tracer().trace(gm)
        return gm.forward

    known = torch.compile(lambda x: x.cos() * 2, backend="eager")
    x = torch.ones(3)
    expected = known(x)
    model = torchproof.compile(lambda x: x.sin() + 1, backend=backend)
    caller = threading.Thread(target=model, args=(x,), daemon=True)
    caller.start()
    assert traces.wait(AGES_S)
    try:
        assert not torch.compiler.is_compiling()
        assert not torch.fx._symbolic_trace.is_fx_symbolic_tracing()
        assert torch.equal(known(x), expected)
    finally:
        may_go_on.set()
        caller.join(AGES_S)
    # Torch 2.11 says only to traced code that it compiles.
    assert inside[1] and inside[0] is hasattr(
        torch.compiler, "_compile_session_context"
    )
    assert torchproof.status(model).compilations


def test_fx_still_refuses_a_compiled_function_in_its_own_thread() -> None:
    torchproof.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    inner = torch.compile(lambda x: x.cos(), backend="eager")
    with pytest.raises(RuntimeError, match="FX to symbolically trace"):
        torch.fx.symbolic_trace(lambda x: inner(x) + 1)


def trace(inside: Callable[[], Any]) -> None:
    """Calls `inside` while FX traces.

    FX has not yet patched classes for the whole process, which threads cannot overlap.
    """

    class Tracer(torch.fx.Tracer):
        def create_args_for_root(self, *args: Any, **kwargs: Any) -> Any:
            inside()
            return super().create_args_for_root(*args, **kwargs)

    Tracer().trace(lambda x: x + 1)


def compile_session(inside: Callable[[], Any]) -> None:
    """Calls `inside` within what torch enters while it compiles."""
    with torch.compiler._compile_session_context():
        inside()


def is_tracing() -> bool:
    asked = torch.fx._symbolic_trace
    answers = {asked.is_fx_tracing(), asked.is_fx_symbolic_tracing()}
    assert len(answers) == 1
    return answers.pop()


FLAGS = pytest.mark.parametrize(
    ("work", "is_set"),
    [
        pytest.param(trace, is_tracing, id="fx"),
        pytest.param(
            compile_session,
            torch.compiler.is_compiling,
            id="compiling",
            marks=pytest.mark.skipif(
                not hasattr(torch.compiler, "_compile_session_context"),
                reason="this torch says only to traced code that it compiles",
            ),
        ),
    ],
)


@FLAGS
def test_no_flag_stays_set_when_the_first_to_begin_is_the_first_to_end(
    work: Callable[[Callable[[], Any]], None], is_set: Callable[[], bool]
) -> None:
    """Torch restores what it found: the second thread found the flag of the first."""
    torchproof.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    begun = threading.Event(), threading.Event()
    may_end = threading.Event(), threading.Event()
    inside: list[bool] = []

    def hold(number: int) -> None:
        begun[number].set()
        may_end[number].wait(AGES_S)
        inside.append(is_set())

    threads = []
    for number in range(2):
        one = functools.partial(work, functools.partial(hold, number))
        threads.append(threading.Thread(target=one, daemon=True))
        threads[-1].start()
        assert begun[number].wait(AGES_S)
    for number in range(2):
        may_end[number].set()
        threads[number].join(AGES_S)
        assert not threads[number].is_alive()
        assert not is_set()
    assert inside == [True, True]
    x = torch.ones(3)
    assert torch.equal(torch.compile(lambda x: x * 3, backend="eager")(x), x * 3)


@FLAGS
def test_flags_of_nested_work_in_one_thread(
    work: Callable[[Callable[[], Any]], None], is_set: Callable[[], bool]
) -> None:
    torchproof.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    inside: list[bool] = []

    def nested() -> None:
        work(lambda: inside.append(is_set()))
        inside.append(is_set())

    work(nested)
    assert inside == [True, True]
    assert not is_set()


def test_torch_cond_clears_the_flag_of_fx_in_its_own_thread_only() -> None:
    """It calls a compiled function inside a trace, and restores the flag it found."""
    torchproof.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    clear = importlib.import_module("torch._higher_order_ops.utils")
    traces, may_end = threading.Event(), threading.Event()
    inside: list[bool] = []

    def hold() -> None:
        traces.set()
        may_end.wait(AGES_S)
        with clear._set_compilation_env():
            inside.append(is_tracing())
        inside.append(is_tracing())

    tracer = threading.Thread(target=trace, args=(hold,), daemon=True)
    tracer.start()
    assert traces.wait(AGES_S)
    with clear._set_compilation_env():
        may_end.set()
        tracer.join(AGES_S)
    assert inside == [False, True]
    assert not is_tracing()


class Switched(nn.Module):
    """Takes another path, with other graph breaks, if its attribute changes."""

    def __init__(self) -> None:
        super().__init__()
        self.bends = True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x) if self.bends else torch.relu(torch.cos(x))
        torch._dynamo.graph_break()
        return torch.tanh(x)


def change_at_restarts(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Changes the model between the passes of a trace, where a thread might do so."""
    log = importlib.import_module("torch._dynamo.symbolic_convert").SpeculationLog
    restart = log.restart
    left = [times]

    def change(self: Any) -> None:
        if self.entries and left[0] > 0:  # none before the first pass
            left[0] -= 1
            model.bends = not model.bends
        restart(self)

    monkeypatch.setattr(log, "restart", change)


def calls_until_compiled(model: Any, x: Tensor) -> Status:
    until = time.monotonic() + AGES_S
    status = torchproof.status(model)
    while not (status.compiled_calls or status.fallbacks) and time.monotonic() < until:
        expected = Switched.forward(model, x)
        torch.testing.assert_close(model(x), expected)
        while torchproof.status(model).pending and time.monotonic() < until:
            time.sleep(0.01)
        status = torchproof.status(model)
    return status


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_change_while_a_background_thread_traces_is_no_fallback(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = compiled(Switched(), wait=False), sample()
    change_at_restarts(model, monkeypatch, times)
    status = calls_until_compiled(model, x)
    assert status.compiled_calls and not status.fallbacks, status
    told = [note for note in status.notes if "changed meanwhile" in note]
    assert len(told) == bool(times), status


def test_a_trace_that_always_diverges_stops_making_callers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = compiled(Switched()), sample()
    change_at_restarts(model, monkeypatch, 1000)
    for _ in range(40):
        torch.testing.assert_close(model(x), Switched.forward(model, x))
    status = torchproof.status(model)
    assert [item.kind for item in status.fallbacks] == ["compile error"], status
    assert "SpeculationLogDivergence" in status.fallbacks[0].why
    assert status.compiled_calls == 0
