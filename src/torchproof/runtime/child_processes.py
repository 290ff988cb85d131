"""Kills a child and its descendants, measures its memory, and finds where it hangs.

A child has a mark in its environment, and its descendants inherit it. So a descendant
is found even if it has left the session or lost its parent.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchproof.runtime.compile_phases import phase_of_frames

MARK_VARIABLE = "TORCHPROOF_CHILD"
_STACK_PATIENCE_S = 0.3

Frames = list[tuple[str, str]]  # (filename, function), innermost last


def kill_tree(pid: int | None, mark: str, *, patience_s: float = 2.0) -> bool:
    """Kills a process, its descendants and all with the mark, except this process.

    Returns whether all have ended. Pass None as `pid` after the process was reaped: its
    number may belong to another process.
    """
    until = time.monotonic() + patience_s
    while victims := _family(pid, mark):
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _family(pid: int | None, mark: str) -> set[int]:
    descendants = {member.pid for member in living(pid)} if pid is not None else set()
    return (descendants | set(_marked(mark))) - {os.getpid()}


def living(pid: int) -> list[Any]:
    """The psutil processes of a process and its descendants, without zombies."""
    import psutil

    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [member for member in members if _is_alive(member)]


def _is_alive(process: Any) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _marked(mark: str) -> Iterator[int]:
    sought = f"{MARK_VARIABLE}={mark}".encode()
    for folder in Path("/proc").iterdir():
        # A zombie's environment is empty; that of other users is not readable.
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and sought in (folder / "environ").read_bytes():
                yield int(folder.name)


def memory_bytes(pid: int, *, limit: int) -> int:
    """The memory of a process and its descendants.

    The resident set is quick to read but counts shared pages once per process. Only if
    it exceeds the limit is the proportional set read.
    """
    members = living(pid)
    resident = sum(_read(member, "memory_info", "rss") for member in members)
    if resident <= limit:
        return resident
    return sum(_read(member, "memory_full_info", "pss") for member in members)


def _read(process: Any, method: str, field: str) -> int:
    import psutil

    try:
        return int(getattr(getattr(process, method)(), field))
    except psutil.Error:
        return 0  # it has ended


def phase_of(pid: int, stacks: int) -> str:
    """The phase in which a child hangs, from the stacks it dumps on SIGUSR1.

    `stacks` is the file descriptor that the child dumps into.
    """
    threads = _dumped_stacks(pid, stacks)
    if helper := _helper_program(pid):
        waiting = next((frames for frames in threads if _awaits_process(frames)), [])
        guess = "Triton compiler" if helper.startswith("ptxas") else "C++ compiler"
        phase = phase_of_frames(waiting)
        return guess if phase in (None, "code generation", "worker pool") else phase
    working = next((frames for frames in threads if _generates(frames)), [])
    return phase_of_frames(working) or "code generation"


def _helper_program(pid: int) -> str | None:
    """The name of a descendant that is not Python, such as a compiler."""
    import psutil

    for member in living(pid)[1:]:
        with contextlib.suppress(psutil.Error):
            name = str(member.name())
            if not name.startswith(("python", os.path.basename(sys.executable))):
                return name
    return None


def _dumped_stacks(pid: int, stacks: int) -> list[Frames]:
    before = os.fstat(stacks).st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + _STACK_PATIENCE_S
    size = before
    while time.monotonic() < until:
        time.sleep(0.02)
        last, size = size, os.fstat(stacks).st_size
        if size == last > before:
            break
    # Child and parent share the file's offset: read without moving it.
    return parse_stacks(
        os.pread(stacks, size - before, before).decode(errors="replace")
    )


def parse_stacks(text: str) -> list[Frames]:
    """The stacks of the threads in a dump of faulthandler."""
    threads: list[Frames] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append([])
        elif threads and (frame := re.match(r'  File "(.*)", line \d+ in (.*)', line)):
            threads[-1].insert(0, (frame[1], frame[2]))
    return threads


def _awaits_process(frames: Sequence[tuple[str, str]]) -> bool:
    return any(os.path.basename(filename) == "subprocess.py" for filename, _ in frames)


def _generates(frames: Sequence[tuple[str, str]]) -> bool:
    return any(function == "codegen_and_compile" for _, function in frames)
