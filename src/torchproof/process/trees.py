"""Finds and kills a process with everything that it started.

A process belongs to a tree if it descends from its root, is in the session that the
root leads, or has the root's mark. `spawn` puts the mark into the environment of a
child, and descendants inherit it: so one that left the session and lost its parent is
found too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MARK_VARIABLE = "TORCHPROOF_CHILD"


def kill_tree(
    pid: int | None, mark: str | None = None, *, patience_s: float = 2.0
) -> bool:
    """Kills a process and its tree, except this process; whether all have ended.

    Pass None as `pid` after the process was reaped: its number may belong to another
    process.
    """
    until = time.monotonic() + patience_s
    while victims := tree(pid, mark) - {os.getpid()}:
        for victim in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(victim, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def tree(pid: int | None, mark: str | None = None) -> set[int]:
    """The living processes of a tree, with its root."""
    sought = None if mark is None else f"{MARK_VARIABLE}={mark}".encode()
    members: set[int] = set()
    children: dict[int, list[int]] = {}
    for process in _living():
        children.setdefault(process.parent, []).append(process.pid)
        if process.pid == pid or process.session == pid or _has(process.pid, sought):
            members.add(process.pid)
    unseen = list(members)
    while unseen:
        found = [
            child for child in children.get(unseen.pop(), ()) if child not in members
        ]
        members.update(found)
        unseen += found
    return members


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int


def _living() -> Iterator[_Process]:
    """All processes but zombies."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", name, "stat").read_bytes()
                # After the name of the program, which may contain anything.
                fields = stat.rpartition(b")")[2].split()
                state, parent, _, session = fields[:4]
                if state not in (b"Z", b"X"):
                    yield _Process(int(name), int(parent), int(session))


def _has(pid: int, sought: bytes | None) -> bool:
    if sought is None:
        return False
    # The environment of another user's process is not readable.
    with contextlib.suppress(OSError):
        return sought in Path("/proc", str(pid), "environ").read_bytes()
    return False
