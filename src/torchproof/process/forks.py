"""Repairs locks and unfinished work of other threads in a forked process.

A forked process has only the thread that forked, but the memory of all threads. A lock
that another thread held stays locked forever, and its unfinished work stays unfinished.
Locks from this module are free in a fork, `undone_in_fork` undoes work in progress, and
`register` calls `after_fork` on an object.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_under_way: dict[object, tuple[int, Callable[[], object]]] = {}


def alive(items: weakref.WeakSet[T]) -> list[T]:
    """The objects in a set to which other threads may add.

    Iterating over the set itself would raise then; copying its `data` is one step.
    """
    references = list(items.data)  # type: ignore[attr-defined]
    return [item for each in references if (item := each()) is not None]


class Renewable(Protocol):
    """An object with per-thread state."""

    def after_fork(self) -> None: ...


def register(item: Renewable) -> None:
    """Calls its `after_fork` in forked processes, as long as the object lives."""
    _registered.add(item)


def lock() -> Any:
    """A `threading.Lock` that is always free in a forked process."""
    new_lock = threading.Lock()
    _locks.add(new_lock)
    return new_lock


def rlock() -> Any:
    """A `threading.RLock` that is always free in a forked process."""
    new_lock = threading.RLock()
    _locks.add(new_lock)
    return new_lock


@contextlib.contextmanager
def undone_in_fork(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` in a process that another thread forks while the body runs."""
    key = object()
    _under_way[key] = threading.get_ident(), undo
    try:
        yield
    finally:
        _under_way.pop(key, None)


def _renew() -> None:
    for each in alive(_locks):
        each._at_fork_reinit()  # as the standard library does for its own locks
    for item in alive(_registered):
        item.after_fork()
    current = threading.get_ident()
    for key, (thread, undo) in list(_under_way.items()):
        if thread != current:
            del _under_way[key]
            undo()


os.register_at_fork(after_in_child=_renew)
