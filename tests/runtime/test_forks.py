"""A fork of a process that compiles: what its threads held stays with the parent."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable

import torch
from torch._dynamo import convert_frame

import torchproof
from torchproof.runtime import attempts


def holds_in_a_fork(check: Callable[[], bool]) -> bool:
    with warnings.catch_warnings():
        # Python 3.12 warns of forks of processes with threads, which this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_does_not_wait_for_threads_of_its_parent() -> None:
    leave = threading.Event()
    attempt = attempts.Attempt(leave.wait, "in the parent only")
    assert attempt in attempts._under_way
    assert holds_in_a_fork(lambda: not attempts._under_way)
    leave.set()
    assert attempt.wait(time.monotonic() + 10)


def test_a_fork_can_compile_though_its_parent_does() -> None:
    torchproof.compile(torch.sin, backend="eager")(torch.ones(2))
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with convert_frame.compile_lock:
            held.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert not convert_frame.compile_lock.acquire(blocking=False)
    assert holds_in_a_fork(lambda: convert_frame.compile_lock.acquire(blocking=False))
    leave.set()
    thread.join()
