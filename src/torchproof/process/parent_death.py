"""Processes that end with the one that began them, even where that one is killed.

The parent begins them with `begun` and hands `parent()` on in their environment; the
child calls `hold` first of all. Then Linux kills it when its parent ends: also a child
that hangs in C code, which no thread of its own would get to end.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_PARENT = "TORCHPROOF_PARENT"
_SIGNAL_AT_PARENTS_END = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


class _Beginner:
    """The thread that begins every child.

    Linux takes the end of the thread that began a child for its parent's end, so that
    one must live as long as the process.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]
        self._asked = queue.SimpleQueue()
        name = "torchproof-beginner"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            begin, answer = self._asked.get()
            try:
                answer.set_result(begin())
            except BaseException as error:  # it belongs to whoever asked
                answer.set_exception(error)

    def ask(self, begin: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._asked.put((begin, answer))
        return answer.result()


_lock = threading.Lock()
_beginner: _Beginner | None = None


def begun(begin: Callable[[], T]) -> T:
    """What `begin()` returns, called in a thread that lives as long as this process."""
    global _beginner
    with _lock:
        if _beginner is None:
            _beginner = _Beginner()
    return _beginner.ask(begin)


def parent() -> dict[str, str]:
    """What the environment of a child must tell."""
    return {_PARENT: str(os.getpid())}


def hold() -> None:
    """Ties this process to the one that began it; ends it if that one is gone."""
    began = int(os.environ.pop(_PARENT, "0"))
    if not began:
        return
    if os.getppid() == began:
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGKILL)
    # Asked once more: it may have ended before the kernel was told.
    if os.getppid() != began and not _is_there(began):
        sys.exit(1)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to someone else, so there is one
        return True
    return True


def _forget() -> None:
    """A forked process has no thread but the one that forked."""
    global _beginner, _lock
    _beginner, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
