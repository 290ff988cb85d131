"""Waits for what other threads and processes do."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

AGES_S = 300.0  # long enough for any machine
T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = AGES_S) -> T:
    """The first value of the condition that is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)
    return value


def is_running(pid: int) -> bool:
    """A process that has ended, and that nobody has waited for, does not run."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_ends(pids: Iterable[int], seconds: float = 60.0) -> None:
    every = [*pids]
    wait_for(lambda: not any(map(is_running, every)), seconds)


def in_fork(work: Callable[[], object], seconds: float = AGES_S) -> int:
    """The exit code of a fork that does the work; that of SIGALRM if it hangs."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks of processes with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(seconds))
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
