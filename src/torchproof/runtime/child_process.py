"""Starts the child of production, measures its memory, and finds where it hangs."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchproof.process import Priority, spawn, tree
from torchproof.torch_private import compile_phases

MODULE = "torchproof.runtime.child"
_STACK_PATIENCE_S = 0.3
_TAIL_BYTES = 4096

Frames = list[tuple[str, str]]  # (filename, function), innermost last


def _search_path() -> str:
    """This process's `sys.path`, with the standard library first.

    A file of the program may have the name of a standard module that the child needs.
    """
    library = os.path.dirname(os.__file__)
    standard = {library, os.path.join(library, "lib-dynload")}
    entries = [entry or os.getcwd() for entry in sys.path]
    return os.pathsep.join(sorted(entries, key=lambda entry: entry not in standard))


class ChildProcess:
    """A process that runs `torchproof.runtime.child`, with its output and stacks."""

    def __init__(self, task: str, *, priority: Priority = "same") -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115
        stacks = self._stacks.fileno()
        self.child = spawn(
            *("-m", MODULE, task, str(stacks)),
            environment={"PYTHONPATH": _search_path()},
            output=self._output,
            keep=(stacks,),
            watches_parent=True,
        )
        self.child.lower_priority(priority)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; the process goes on."""
        for file in (self._output, self._stacks):
            file.close()
        if hasattr(self, "child"):
            self.child.channel.close()

    def last_line(self) -> str:
        """The last line that the child printed."""
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        lines = tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def members(self) -> set[int]:
        """The child and everything that it started."""
        return tree(self.child.pid)

    def crash(self) -> Frames:
        """The stack of the thread in which the child crashed."""
        threads = self._read_stacks(0)
        return threads[0] if threads else []

    def stacks(self) -> list[Frames]:
        """The stacks of all threads of the child, the main one last."""
        before = size = os.fstat(self._stacks.fileno()).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGUSR1)
        until = time.monotonic() + _STACK_PATIENCE_S
        while time.monotonic() < until:
            time.sleep(0.02)
            last, size = size, os.fstat(self._stacks.fileno()).st_size
            if size == last > before:
                break
        return self._read_stacks(before)

    def _read_stacks(self, start: int) -> list[Frames]:
        # Child and parent share the file's offset: read without moving it.
        size = os.fstat(self._stacks.fileno()).st_size - start
        text = os.pread(self._stacks.fileno(), size, start)
        return parse_stacks(text.decode(errors="replace"))

    def phase(self) -> str:
        """The phase in which the child hangs."""
        if _is_stopped(self.child.pid):
            return "stopped child"  # it cannot write its stacks
        threads = self.stacks()
        if helpers := _helper_programs(self.child.pid):
            waiting = next((frames for frames in threads if _awaits(frames)), [])
            is_triton = any(name.startswith("ptxas") for name in helpers)
            guess = "Triton compiler" if is_triton else "C++ compiler"
            phase = compile_phases.phase_of_frames(waiting)
            return guess if phase in (None, "code generation", "worker pool") else phase
        working = next((frames for frames in threads if _generates(frames)), [])
        return compile_phases.phase_of_frames(working) or "code generation"


def memory_bytes(members: Iterable[int], *, limit: int) -> int:
    """The memory of processes that share some of it.

    The resident set is quick to read but counts shared pages once per process. Only if
    it exceeds the limit is the proportional set read.
    """
    resident = sum(map(_resident_bytes, members))
    return resident if resident <= limit else sum(map(_proportional_bytes, members))


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):  # it has ended
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()
    return 0


def _proportional_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        kib = re.search(
            r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M
        )
        return int(kib[1]) << 10 if kib else 0
    return 0


def parse_stacks(text: str) -> list[Frames]:
    """The stacks of the threads in a dump of faulthandler."""
    threads: list[Frames] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            threads.append([])
        elif threads and (frame := re.match(r'  File "(.*)", line \d+ in (.*)', line)):
            threads[-1].insert(0, (frame[1], frame[2]))
    return threads


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by SIGSTOP or a debugger."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] in ("T", "t")
    return False


def _helper_programs(pid: int) -> list[str]:
    """The names of descendants that are not Python, such as compilers."""
    names = []
    for member in tree(pid) - {pid}:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{member}/comm").read_text().strip()
            if not name.startswith(("python", os.path.basename(sys.executable))):
                names.append(name)
    return names


def _awaits(frames: Sequence[tuple[str, str]]) -> bool:
    return any(os.path.basename(filename) == "subprocess.py" for filename, _ in frames)


def _generates(frames: Sequence[tuple[str, str]]) -> bool:
    return any(function == "codegen_and_compile" for _, function in frames)
