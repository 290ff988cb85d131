"""A caller that waits for the compiler: what reaches it, and what it keeps."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import weakref
from typing import Any

import pytest
import torch

import torchproof
from torchproof.runtime import backend, codegen_worker, compile_job
from torchproof.torch_private import backends


class Called(Exception):
    """What a signal handler of the user's raises."""


def test_what_a_signal_handler_raises_reaches_the_caller() -> None:
    leave, me = threading.Event(), threading.main_thread().ident
    assert me is not None

    def waits(graph: Any, inputs: Any) -> Any:
        if not leave.is_set():
            signal.pthread_kill(me, signal.SIGUSR2)
            leave.wait()
        return graph.forward

    def handler(*_: object) -> None:
        leave.set()
        raise Called

    compiled = torchproof.compile(lambda x: x * 2, backend=waits)
    previous = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Called):
            compiled(torch.ones(2))
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    status = torchproof.status(compiled)
    assert (len(status.compilations), status.fallbacks) == (1, ())


def test_inputs_are_not_kept_after_a_missed_deadline() -> None:
    def loops(graph: Any, inputs: Any) -> Any:
        while True:
            pass

    compiled = torchproof.compile(lambda x: x * 2, backend=loops, deadline=0.5)
    x = torch.ones(2)
    kept = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        compiled(x)
        del x
        assert kept() is None
    finally:
        gc.enable()
    assert torchproof.status(compiled).fallbacks[0].kind == "deadline"


def test_threads_take_short_turns_while_a_compilation_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By default a thread that is busy in Python would keep its caller waiting."""
    intervals, usual = [], sys.getswitchinterval()
    end = compile_job.Job.end_compilers

    def recorded(job: compile_job.Job, thread_id: int) -> None:
        intervals.append(sys.getswitchinterval())
        end(job, thread_id)

    monkeypatch.setattr(compile_job.Job, "end_compilers", recorded)
    compiled = torchproof.compile(lambda x: x * 2, backend=loops, deadline=0.2)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert intervals and max(intervals) < usual == sys.getswitchinterval()
    [item] = torchproof.status(compiled).fallbacks
    assert item.kind == "deadline"


def loops(graph: Any, inputs: Any) -> Any:
    while True:
        pass


def test_a_compiler_that_starts_at_the_deadline_is_ended() -> None:
    """The thread starts it while it is being stopped."""
    folder = os.path.join(backends.cache_folder(), "")
    command = [sys.executable, "-c", "import time; time.sleep(60)", folder]
    started: list[int] = []

    def begins_late(graph: Any, inputs: Any) -> Any:
        try:
            loops(graph, inputs)
        finally:
            # One call into C, in which the thread is not interrupted again.
            started.append(os.posix_spawn(command[0], command, os.environ))

    compiled = torchproof.compile(lambda x: x * 2, backend=begins_late, deadline=0.2)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    [compiler] = started
    _, status = os.waitpid(compiler, 0)  # it would sleep for a minute
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_a_frame_that_is_late_because_of_a_graph_has_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = backend.GraphCompiler._failed

    def slow(self: backend.GraphCompiler, item: Any, job: Any) -> None:
        failed(self, item, job)
        loops(None, None)  # as on a machine that has other work

    def hangs(graph: Any, inputs: Any) -> Any:
        raise codegen_worker.ChildHung("lock")

    monkeypatch.setattr(backend.GraphCompiler, "_failed", slow)
    compiled = torchproof.compile(lambda x: x * 2, backend=hangs, deadline=0.5)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    [item] = torchproof.status(compiled).fallbacks
    assert (item.kind, item.phase) == ("deadline", "lock")
    assert not item.what.startswith("graph")
