"""A fork of a process that compiles: what its threads held stays with the parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import convert_frame
from torch.utils.data import DataLoader

import torchproof
from torchproof.process import forks
from torchproof.runtime import interruptible_thread, steps
from torchproof.strategies.call_recorder import CallRecorder

DEADLINE_S = 200.0  # that a call in the fork would wait for
PATIENCE_S = 60


def holds_in_a_fork(check: Callable[[], Any]) -> bool:
    """Whether a fork of this process, here and now, finds it so, and soon."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks of processes with threads, which this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(PATIENCE_S)
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            logging.exception("in the fork")
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def held(fresh_compiler: None) -> Iterator[Callable[..., None]]:
    """Starts a thread that stays in a `with` block, or in a call of `pause`."""
    inside, leave = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def pause() -> None:
        inside.set()
        leave.wait()

    def hold(act: Callable[[Callable[[], None]], Any]) -> None:
        threads.append(threading.Thread(target=act, args=(pause,)))
        threads[-1].start()
        assert inside.wait(PATIENCE_S)

    yield hold
    leave.set()
    for thread in threads:
        thread.join()


def test_a_fork_does_not_wait_for_threads_of_its_parent() -> None:
    leave = threading.Event()
    attempt = interruptible_thread.InterruptibleThread(leave.wait, "in the parent only")
    assert attempt in interruptible_thread._threads
    assert holds_in_a_fork(lambda: not interruptible_thread._threads)
    leave.set()
    assert attempt.wait(time.monotonic() + 10)


def test_locks_are_free_and_work_is_undone_in_a_fork(held: Any) -> None:
    locks, undone = [forks.lock(), forks.rlock()], []

    def act(pause: Callable[[], None]) -> None:
        with locks[0], locks[1], forks.undone_in_fork(lambda: undone.append(1)):
            pause()

    held(act)
    with forks.undone_in_fork(lambda: undone.append("of the thread that forks")):
        assert holds_in_a_fork(
            lambda: all(lock.acquire(timeout=1) for lock in locks) and undone == [1]
        )
    assert undone == [] and not locks[0].acquire(blocking=False)


def test_a_fork_can_compile_though_its_parent_does(held: Any) -> None:
    torchproof.compile(torch.sin, backend="eager")(torch.ones(2))

    def act(pause: Callable[[], None]) -> None:
        with convert_frame.compile_lock:
            pause()

    held(act)
    assert not convert_frame.compile_lock.acquire(blocking=False)
    assert holds_in_a_fork(lambda: convert_frame.compile_lock.acquire(blocking=False))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        # What is traced and what runs eager differ, for who believes that it is traced.
        return x + self.inner(x).tanh() * (1.0 + torch.compiler.is_compiling())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def compiles_anew(model: nn.Module, eager: Tensor, compiled: Tensor) -> bool:
    """A call in the fork answers at once and right; the model is compiled soon."""
    x, until = torch.ones(2, 4), time.monotonic() + PATIENCE_S / 2
    answer = model(x)
    # With wait=False a compilation is counted before its code answers calls.
    while not torch.allclose(answer, compiled) and time.monotonic() < until:
        if not torch.allclose(answer, eager):
            return False
        time.sleep(0.02)
        answer = model(x)
    status = torchproof.status(model)
    return torch.allclose(answer, compiled) and status.fallbacks == ()


@pytest.mark.parametrize("settings", [{}, {"wait": False}, {"strategy": "regional"}])
def test_a_model_that_is_compiled_while_another_thread_forks(
    held: Any, settings: dict[str, Any]
) -> None:
    parent, model, x = os.getpid(), Net(), torch.ones(2, 4)
    pause: Callable[[], None] = lambda: None  # noqa: E731

    def backend(gm: Any, inputs: Any) -> Any:
        if os.getpid() == parent:
            pause()
        return gm.forward

    with torch.no_grad():
        eager = model(x)
        doubled = x
        for block in model.blocks:
            doubled = doubled + block.inner(doubled).tanh() * 2.0
        model = torchproof.compile(
            model, backend=backend, deadline=DEADLINE_S, **settings
        )

        def act(hold: Callable[[], None]) -> None:
            nonlocal pause
            pause = hold
            with torch.no_grad():
                model(x)
                model(x)  # of regions, the first call shows where they are

        held(act)
        assert holds_in_a_fork(lambda: compiles_anew(model, eager, doubled))


@pytest.fixture
def cuda_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In forks, CUDA as it is there if the parent used it: available, and unusable."""
    parent, built = os.getpid(), torch.cuda._is_compiled()
    original = torch.cuda.get_rng_state

    def forked() -> bool:
        return os.getpid() != parent

    def get_rng_state(*args: Any) -> Tensor:
        if forked():
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return original(*args)

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: forked() or built)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", forked)
    monkeypatch.setattr(torch.cuda, "get_rng_state", get_rng_state)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", forked, raising=False)


def where_it_is(x: Tensor) -> Tensor:
    return x * (3.0 if torch.cuda.is_available() else 2.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for CUDA")
@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_a_fork_of_a_process_that_used_cuda_can_compile(
    cuda_of_the_parent: None, fresh_compiler: None, backend: str
) -> None:
    x = torch.ones(2)
    torchproof.compile(torch.sin, backend="eager")(x)

    def check() -> bool:
        compiled = torchproof.compile(where_it_is, backend=backend, deadline=DEADLINE_S)
        eager, answer = where_it_is(x), compiled(x)
        status = torchproof.status(compiled)
        return (
            torch.equal(eager, x * 3.0)
            and torch.equal(answer, eager)
            and len(status.compilations) == 1
            and status.fallbacks == ()
        )

    assert holds_in_a_fork(check)


def test_a_search_for_regions_that_a_fork_cuts_off_begins_anew(held: Any) -> None:
    model, x = Net(), torch.ones(2, 4)
    parent, pause = os.getpid(), [lambda: None]

    def hook(module: nn.Module, args: Any) -> None:
        if os.getpid() == parent:
            pause[0]()

    model.blocks[1].register_forward_pre_hook(hook)
    settings: dict[str, Any] = {"strategy": "regional", "backend": "eager"}
    model = torchproof.compile(model, deadline=DEADLINE_S, **settings)

    def act(hold: Callable[[], None]) -> None:
        pause[0] = hold
        model(x)

    held(act)

    def check() -> bool:
        hooks = sum(len(each._forward_hooks) for each in model.modules())
        model(x)
        model(x)
        return hooks == 0 and len(torchproof.status(model).compilations) > 0

    assert holds_in_a_fork(check)


def test_parts_that_a_thread_turned_eager_are_compiled_in_a_fork(held: Any) -> None:
    model, x = Net(), torch.ones(2, 4)
    settings: dict[str, Any] = {"strategy": "regional", "backend": "eager"}
    model = torchproof.compile(model, deadline=DEADLINE_S, **settings)
    with torch.no_grad():
        model(x)
        model(x)
    entry = torchproof.runtime.compiled_forward_of(model)
    runs = [part.run for part in entry._parts]
    parent, pause = os.getpid(), [lambda: None]
    model.blocks[1].inner.register_forward_pre_hook(
        lambda *_: pause[0]() if os.getpid() == parent else None
    )

    def act(hold: Callable[[], None]) -> None:
        pause[0] = hold
        entry.run_eager(x)

    held(act)
    assert [part.run for part in entry._parts] != runs
    assert holds_in_a_fork(lambda: [part.run for part in entry._parts] == runs)


def test_random_numbers_and_turns_are_the_usual_ones_in_a_fork(held: Any) -> None:
    from torchproof.runtime.tensors import rng_state

    usual, setters = sys.getswitchinterval(), (random.setstate, torch.set_rng_state)

    def act(pause: Callable[[], None]) -> None:
        with (
            interruptible_thread.short_switch_interval(),
            rng_state.restores_suppressed(),
        ):
            pause()

    held(act)
    assert random.setstate is not setters[0] and sys.getswitchinterval() < usual
    assert holds_in_a_fork(
        lambda: (
            random.setstate == setters[0]
            and sys.getswitchinterval() == usual
            and interruptible_thread._interval_users == 0
        )
    )


def test_a_step_of_another_thread_is_not_under_way_in_a_fork(held: Any) -> None:
    def act(pause: Callable[[], None]) -> None:
        with torchproof.step():
            pause()

    held(act)
    process = steps._process
    assert process.others_are_busy(process.thread)
    assert holds_in_a_fork(lambda: not process.others_are_busy(process.thread))


def test_a_watch_takes_its_hooks_off_in_a_fork(held: Any) -> None:
    model = Net()

    def act(pause: Callable[[], None]) -> None:
        with CallRecorder(model):
            pause()

    held(act)
    assert model.blocks[0]._forward_hooks
    assert holds_in_a_fork(lambda: not model.blocks[0]._forward_hooks)


def test_events_that_the_parent_delivers_are_not_the_forks() -> None:
    told: list[str] = []
    model = torchproof.compile(
        Net(), backend="eager", on_event=lambda kind, record: told.append(kind)
    )
    telemetry = torchproof.runtime.compiled_forward_of(model).telemetry
    telemetry.emit("drift", {})
    assert holds_in_a_fork(lambda: torchproof.status(model) and told == [])
    torchproof.status(model)
    assert told == ["drift"]


def test_a_fork_waits_for_an_import_of_a_helper(tmp_path: Any) -> None:
    (tmp_path / "slow_to_load.py").write_text("import time\ntime.sleep(0.5)\nx = 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        attempt = interruptible_thread.InterruptibleThread(
            lambda: __import__("slow_to_load"), "imports"
        )
        while "slow_to_load" not in sys.modules:
            time.sleep(0.001)
        assert holds_in_a_fork(lambda: __import__("slow_to_load").x == 1)
        assert attempt.wait(time.monotonic() + 10)
    finally:
        sys.path.remove(str(tmp_path))


class Rows(torch.utils.data.Dataset[Tensor]):
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.model(torch.full((2, 4), float(index)))
        return found


@pytest.mark.slow
def test_workers_of_a_data_loader_and_of_multiprocessing_compile(held: Any) -> None:
    parent, model = os.getpid(), Net()
    pause: list[Callable[[], None]] = [lambda: None]

    def backend(gm: Any, inputs: Any) -> Any:
        if os.getpid() == parent:
            pause[0]()
        return gm.forward

    model = torchproof.compile(model, backend=backend, deadline=DEADLINE_S)

    def act(hold: Callable[[], None]) -> None:
        pause[0] = hold
        with torch.no_grad():
            model(torch.ones(2, 4))

    held(act)
    started = time.monotonic()
    loader = DataLoader(Rows(model), num_workers=2, multiprocessing_context="fork")
    assert len(list(loader)) == 4
    process = multiprocessing.get_context("fork").Process(
        target=Rows(model).__getitem__, args=(1,)
    )
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    assert time.monotonic() - started < PATIENCE_S
