"""Processes that have to go: what belongs to a child, what it holds, where it hangs.

A child carries a mark in its environment, which all it starts inherits: so what has
left its session, or has lost its parent, is found as well.
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
    """Kills a process, its descendants, and all that carry the mark, but not itself.

    Whether all are gone. `pid` is None where the process has been reaped, as its number
    may be another's by then.
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
    found = {member.pid for member in living(pid)} if pid is not None else set()
    return (found | set(_marked(mark))) - {os.getpid()}


def living(pid: int) -> list[Any]:
    """The process and its descendants, as psutil knows them, without zombies."""
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
        # A zombie's environment is empty, that of other users is closed.
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and sought in (folder / "environ").read_bytes():
                yield int(folder.name)


def memory_bytes(pid: int, *, limit: int) -> int:
    """What a process and its descendants hold.

    Pages they share are counted once for each, as that is quick; only where this is
    beyond the limit are they shared out.
    """
    members = living(pid)
    held = sum(_read(member, "memory_info", "rss") for member in members)
    if held <= limit:
        return held
    return sum(_read(member, "memory_full_info", "pss") for member in members)


def _read(process: Any, method: str, field: str) -> int:
    import psutil

    try:
        return int(getattr(getattr(process, method)(), field))
    except psutil.Error:
        return 0  # it has ended


def phase_of(pid: int, stacks: int) -> str:
    """Where a child hangs. It dumps its stacks into the file `stacks` on SIGUSR1."""
    threads = _dumped_stacks(pid, stacks)
    if helper := _helper_program(pid):
        waiting = next((frames for frames in threads if _awaits_process(frames)), [])
        guess = "Triton compiler" if helper.startswith("ptxas") else "C++ compiler"
        phase = phase_of_frames(waiting)
        return guess if phase in (None, "code generation", "worker pool") else phase
    working = next((frames for frames in threads if _generates(frames)), [])
    return phase_of_frames(working) or "code generation"


def _helper_program(pid: int) -> str | None:
    """A descendant that is no Python, such as a compiler."""
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
    until, size = time.monotonic() + _STACK_PATIENCE_S, before
    while time.monotonic() < until:
        time.sleep(0.02)
        last, size = size, os.fstat(stacks).st_size
        if size == last > before:
            break
    # The child writes at the offset of this file, which is the parent's too.
    return parse_stacks(
        os.pread(stacks, size - before, before).decode(errors="replace")
    )


def parse_stacks(text: str) -> list[Frames]:
    """The threads of a dump by faulthandler."""
    threads: list[Frames] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append([])
        elif threads and (found := re.match(r'  File "(.*)", line \d+ in (.*)', line)):
            threads[-1].insert(0, (found[1], found[2]))
    return threads


def _awaits_process(frames: Sequence[tuple[str, str]]) -> bool:
    return any(os.path.basename(filename) == "subprocess.py" for filename, _ in frames)


def _generates(frames: Sequence[tuple[str, str]]) -> bool:
    return any(function == "codegen_and_compile" for _, function in frames)
