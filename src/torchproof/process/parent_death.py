"""Ends a child when its parent ends, even if the parent is killed.

`spawn` starts each child in `begun` and gives it the variables of `parent()`. The child
first calls `hold`.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

from torchproof.process.trees import MARK_VARIABLE, kill_tree

T = TypeVar("T")

_PARENT = "TORCHPROOF_PARENT"
_SIGNAL_AT_PARENTS_END = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_PARENT_CHECK_S = 0.5


class _Beginner:
    """The thread that starts every child.

    Linux signals the death of the parent when the thread that started the child ends,
    so that thread must live as long as the process.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]
        self._requests = queue.SimpleQueue()
        name = "torchproof-beginner"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            begin, answer = self._requests.get()
            try:
                answer.set_result(begin())
            except BaseException as error:  # raised in the thread that asked
                answer.set_exception(error)

    def ask(self, begin: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._requests.put((begin, answer))
        return answer.result()


_lock = threading.Lock()
_beginner: _Beginner | None = None


def begun(begin: Callable[[], T]) -> T:
    """Calls `begin()` in a thread that lives as long as this process."""
    global _beginner
    with _lock:
        if _beginner is None:
            _beginner = _Beginner()
    return _beginner.ask(begin)


def parent() -> dict[str, str]:
    """The variables to add to the environment of a child."""
    return {_PARENT: str(os.getpid())}


def hold(*, descendants: bool = False) -> None:
    """Ties this process to its parent; exits if the parent is already gone.

    Linux then kills this process when the parent ends, even if it hangs in C code. With
    `descendants`, a thread waits for that instead and first kills everything that this
    process started; it gets no turn while C code holds the GIL.
    """
    began = int(os.environ.pop(_PARENT, "0"))
    if not began:
        return
    if descendants:
        threading.Thread(target=_end_with, args=(began,), daemon=True).start()
    elif os.getppid() == began:
        kill_with_parent()
    # Checks again: the parent may have ended before the call of prctl.
    if os.getppid() != began and not _is_there(began):
        sys.exit(1)


def kill_with_parent() -> None:
    """Makes Linux kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGKILL)


def leave(code: int) -> NoReturn:
    """Kills everything that this process started, and exits without exit handlers.

    Torch's exit handlers would wait for its worker pool.
    """
    kill_tree(os.getpid(), os.environ.get(MARK_VARIABLE))
    os._exit(code)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    leave(1)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to another user
        return True
    return True


def _forget() -> None:
    """A forked process has no thread but the one that forked."""
    global _beginner, _lock
    _beginner, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
