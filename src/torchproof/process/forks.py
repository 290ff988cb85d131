"""What a fork leaves behind: locks and unfinished work of threads it does not copy.

A forked process has one thread, the one that forked, and the memory of all others. A
lock that another thread held stays locked there for ever, and what another thread was
about to finish stays unfinished. Locks made here are free in a fork; `undone_in_fork`
takes back work under way; `register` has an object told that it is in a fork.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_under_way: dict[object, tuple[int, Callable[[], object]]] = {}


class Renewable(Protocol):
    """What keeps state of threads."""

    def after_fork(self) -> None: ...


def register(item: Renewable) -> None:
    """Calls its `after_fork` in forks, for as long as it lives."""
    _registered.add(item)


def lock() -> Any:
    """A `threading.Lock` that is free in a fork, whoever held it."""
    new_lock = threading.Lock()
    _locks.add(new_lock)
    return new_lock


def rlock() -> Any:
    """A `threading.RLock` that is free in a fork, whoever held it."""
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
    for each in list(_locks):
        each._at_fork_reinit()  # as the standard library does with its own
    for item in list(_registered):
        item.after_fork()
    current = threading.get_ident()
    for key, (thread, undo) in list(_under_way.items()):
        if thread != current:
            del _under_way[key]
            undo()


os.register_at_fork(after_in_child=_renew)
