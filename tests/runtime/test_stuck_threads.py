"""Beside a thread that sits in C for ever, this process compiles and resets as before.

The C function reads a pipe, so that a test can also let it return.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor, nn

import torchproof

SOON = 60.0  # seconds that nothing here needs, whatever else the machine does
X = torch.linspace(-1, 1, 6)


class Pipe:
    """`block` does not return before `release`, and never to the interpreter."""

    def __init__(self) -> None:
        self._ends = os.pipe()
        self.reached = threading.Event()
        self.within = ""  # blocks only below a file whose path has this part
        self.is_armed = True

    def block(self) -> None:
        if self.is_armed and self.within in "".join(_files_below()):
            self.reached.set()
            ctypes.CDLL(None).read(self._ends[0], ctypes.create_string_buffer(1), 1)

    def release(self) -> None:
        os.write(self._ends[1], b"." * 100)


def _files_below() -> Iterator[str]:
    frame: Any = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


_pipes: list[Pipe] = []


@torch.library.custom_op("stuck::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake
def _(x: Tensor) -> Tensor:
    for pipe in _pipes:
        pipe.block()
    return torch.empty_like(x)


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(double(x)) + 1


@pytest.fixture
def pipe(fresh_compiler: None) -> Iterator[Pipe]:
    # What is loaded at the first compilation does not count against a deadline.
    torchproof.compile(nn.Linear(2, 2), backend="aot_eager")(torch.ones(2))
    pipe = Pipe()
    _pipes.append(pipe)
    yield pipe
    pipe.release()
    _pipes.clear()


def in_bounded_time(work: Callable[[], Any]) -> Any:
    """The result of work that may block for ever, or raise."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive(), "it blocks"
    assert answers, "it raised"
    return answers[0]


def set_deadline(model: Any, seconds: float) -> None:
    engine = model.forward.engine
    engine.options = dataclasses.replace(engine.options, deadline_s=seconds)


def assert_compiles_as_before() -> None:
    in_bounded_time(torch._dynamo.reset)
    plain = torch.compile(lambda x: x.exp() + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(in_bounded_time(lambda: plain(X)), X.exp() + 1)


def assert_retry_compiles(model: Any, stuck: int) -> None:
    set_deadline(model, 300.0)
    torchproof.retry(model)
    answer = in_bounded_time(lambda: model(X))
    torch.testing.assert_close(answer, (X * 2).sin() + 1)
    status = torchproof.status(model)
    assert len(status.compilations) == 1 and not status.fallbacks, status
    assert len(status.stuck) == stuck, status


def assert_thread_leaves_nothing(model: Any, pipe: Pipe) -> None:
    """The thread returns from C, ends, and what was compiled meanwhile goes on."""
    names = [item.thread for item in torchproof.status(model).stuck]
    threads = [each for each in threading.enumerate() if each.name in names]
    assert threads
    pipe.release()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert not torchproof.status(model).stuck
    before = torchproof.status(model).compiled_calls
    torch.testing.assert_close(model(X), (X * 2).sin() + 1)
    assert torchproof.status(model).compiled_calls == before + 1
    assert_compiles_as_before()


def test_reset_and_retry_work_beside_a_stuck_thread(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    model = torchproof.compile(Net(), backend="aot_eager", deadline=2.0)
    ends: list[Any] = []
    torch._dynamo.callback.on_compile_end(ends.append)
    with caplog.at_level(logging.ERROR, "torchproof"):
        torch.testing.assert_close(model(X), (X * 2).sin() + 1)
    assert pipe.reached.is_set()
    assert len(ends) == 1  # for whoever watches compilations, this one is over
    (stuck,) = torchproof.status(model).stuck
    assert "block" in stuck.where
    lines = [record for record in caplog.records if record.name == "torchproof"]
    (line,) = [each.getMessage() for each in lines if each.levelno == logging.ERROR]
    assert stuck.where in line and "torchproof.retry" in line and "restart" in line
    assert_compiles_as_before()
    pipe.is_armed = False  # the fault is gone; the thread is still in C
    assert_retry_compiles(model, stuck=1)
    assert_thread_leaves_nothing(model, pipe)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("within", "backend", "wait"),
    [
        ("/torch/_dynamo/", "inductor", True),
        ("/torch/_dynamo/", "aot_eager", False),
        ("/torch/_functorch/", "inductor", True),
        ("/torch/_functorch/", "aot_eager", True),
    ],
)
def test_the_same_fault_falls_back_again(
    pipe: Pipe, within: str, backend: str, wait: bool
) -> None:
    pipe.within = within
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert_falls_back_twice(pipe, backend, wait)


def assert_falls_back_twice(pipe: Pipe, backend: str, wait: bool) -> None:
    model = torchproof.compile(Net(), backend=backend, deadline=4.0, wait=wait)
    for number in (1, 2):
        torch.testing.assert_close(model(X), (X * 2).sin() + 1)
        while model.forward.engine.pending:
            time.sleep(0.05)
        assert pipe.reached.is_set()
        status = torchproof.status(model)
        assert len(status.stuck) == number and status.fallbacks, status
        assert_compiles_as_before()
        torchproof.retry(model)
    pipe.is_armed = False
    if wait:
        assert_retry_compiles(model, stuck=2)
        assert_thread_leaves_nothing(model, pipe)


@pytest.mark.slow
def test_ctrl_c_leaves_no_lock_with_a_stuck_thread(pipe: Pipe) -> None:
    model = torchproof.compile(Net(), backend="aot_eager")

    def interrupt() -> None:
        assert pipe.reached.wait(SOON)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        model(X)
    assert len(torchproof.status(model).stuck) == 1
    assert_compiles_as_before()
    pipe.is_armed = False
    assert_retry_compiles(model, stuck=1)
    assert_thread_leaves_nothing(model, pipe)


def test_a_fork_resets_while_its_parent_compiles(pipe: Pipe) -> None:
    model = torchproof.compile(Net(), backend="aot_eager")
    caller = threading.Thread(target=lambda: model(X))
    caller.start()
    assert pipe.reached.wait(SOON)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            torch._dynamo.reset()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    pipe.is_armed = False
    pipe.release()
    caller.join(SOON)
    assert not torchproof.status(model).fallbacks
