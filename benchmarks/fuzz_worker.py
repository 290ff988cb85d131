"""Runs cases in forks of this process, under limits, and says how each ended.

A fork does many cases. Its parent sees the number of the case that it is at, and ends
a fork that uses too much time or hangs, in Python or in C; the next fork goes on behind
that case. Counts survive a fork that dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import mmap
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz_guard import EVIL, SECRET, Forbidden, Guard, Surroundings
from benchmarks.fuzz_mutations import MARKER
from benchmarks.fuzz_oracle import Case, Finding, Tally, Wrong

_POLL_S = 0.1
_COUNTS = ("cases", "files", "calls", "accepted", "refused")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Limits:
    """What a case may use; memory is counted from the start of its process."""

    cpu_s: float = 20.0
    blocked_s: float = 60.0  # without a moment on the CPU
    memory: int = 1 << 30
    file: int = 256 << 20
    descriptors: int = 20  # that a batch may leave open


LIMITS = Limits()


@dataclass(frozen=True)
class Job:
    """The cases of one format: `number` and `seed` make a case again."""

    name: str
    body: Callable[[Case], None]
    seed: int = 0
    limits: Limits = LIMITS
    may_read: str | None = None  # the ending of files that it may read anywhere


def run(job: Job, numbers: range) -> Tally:
    """Runs the cases with these numbers."""
    tally, begin = Tally(), numbers.start
    while begin < numbers.stop:
        with tempfile.TemporaryDirectory(prefix="torchproof-fuzz-") as folder:
            fork = _Fork(job, Path(folder))
            begin = fork.run(range(begin, numbers.stop), tally)
    return tally


class _Board:
    """Numbers that a fork and its parent share."""

    _FORM = struct.Struct("<6q")

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, self._FORM.size)
        self.write(None, Tally())

    def write(self, case: int | None, tally: Tally) -> None:
        counts = (getattr(tally, name) for name in _COUNTS)
        self._FORM.pack_into(self._shared, 0, -1 if case is None else case, *counts)

    def read(self) -> tuple[int | None, Tally]:
        case, *counts = self._FORM.unpack_from(self._shared)
        return None if case < 0 else case, Tally(
            **dict(zip(_COUNTS, counts, strict=True))
        )


class _Fork:
    """One process that does cases, and what its parent knows of it."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._job = job
        self._board = _Board()
        self._world = folder / "world"
        self._findings = folder / "findings.jsonl"
        self._stacks = folder / "stacks.txt"

    def run(self, numbers: range, tally: Tally) -> int:
        """Adds to the tally; returns the first number that is still to do."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._be_worker(numbers)
        why = self._watch(pid)
        case, counts = self._board.read()
        status, usage = _end(pid) if why else os.wait4(pid, 0)[1:]
        tally.add(counts, usage)
        for finding in self._told():
            if case is None or finding.case < case:
                tally.tell(finding)
        if why is None and status == 0:
            return numbers.stop
        if case is None:
            raise RuntimeError(f"the fuzzer itself failed: {self._stacks.read_text()}")
        code = os.waitstatus_to_exitcode(status)
        told = why or f"the process ended with {code} ({_signal_name(code)})"
        tally.cases += 1
        tally.tell(Finding(self._job.name, case, told + self._where()))
        return case + 1

    def _told(self) -> list[Finding]:
        if not self._findings.exists():
            return []
        lines = self._findings.read_text().splitlines()
        return [Finding(self._job.name, **json.loads(line)) for line in lines]

    # -- the parent --------------------------------------------------------------------

    def _watch(self, pid: int) -> str | None:
        """Waits until the fork ends, or until there is a reason to end it."""
        limits, pause_s = self._job.limits, 0.002
        at: int | None = None
        cpu_begin_s = cpu_s = 0.0
        moved = time.monotonic()
        while True:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return None
            case, _ = self._board.read()
            cpu_now_s, runs = _cpu(pid)
            if case != at:
                at, cpu_begin_s, moved = case, cpu_now_s, time.monotonic()
            elif runs or cpu_now_s != cpu_s:
                moved = time.monotonic()
            cpu_s = cpu_now_s
            if at is not None and cpu_s - cpu_begin_s > limits.cpu_s:
                return f"more than {limits.cpu_s:g} s of CPU time"
            if time.monotonic() - moved > limits.blocked_s:
                return f"blocked for more than {limits.blocked_s:g} s"
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)

    def _where(self) -> str:
        """The innermost frames of the fork when it was ended, if it wrote them."""
        with contextlib.suppress(OSError):
            text = self._stacks.read_text(errors="replace")
            frames = re.findall(r'File "([^"]+)", line (\d+),? in (\S+)', text)
            places = [f"{Path(f).name}:{n} {name}" for f, n, name in frames[:4]]
            return f", at {' < '.join(places)}" if places else ""
        return ""

    # -- the fork ----------------------------------------------------------------------

    def _be_worker(self, numbers: range) -> None:
        status = 1
        try:
            self._confine()
            _Worker(self._job, self._board, self._world, self._findings).run(numbers)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _confine(self) -> None:
        os.setsid()
        stacks = os.open(self._stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(stacks, 1)
        os.dup2(stacks, 2)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2)
        limits = self._job.limits
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
        most = _data_bytes() + limits.memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.dont_write_bytecode = True
        logging.getLogger("torchproof").setLevel(logging.CRITICAL)


class _Worker:
    """Does cases one after the other, each in a folder of its own."""

    def __init__(self, job: Job, board: _Board, world: Path, findings: Path) -> None:
        self._job, self._board, self._findings = job, board, findings
        self._tally = Tally()
        self._around = Surroundings(world)
        self._guard = Guard(may_read=job.may_read)
        os.environ["HOME"] = str(self._around.home)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._around.temporary)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self._around.home / "torch")

    def run(self, numbers: range) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for number in numbers:
            self._board.write(number, self._tally)
            self._one(number)
            self._tally.cases += 1
        left = len(os.listdir("/proc/self/fd")) - before
        if left > self._job.limits.descriptors:
            self._tell(numbers[-1], f"{left} file descriptors were left open")
        self._board.write(None, self._tally)

    def _one(self, number: int) -> None:
        folder = self._around.cases / f"case-{number}"
        folder.mkdir()
        os.chdir(folder)
        (folder / "evil.py").write_text(EVIL)
        chance = random.Random(f"{self._job.seed} {self._job.name} {number}")
        case = Case(folder, chance, self._tally)
        around = self._around
        self._guard.watch(
            folder,
            allowed=(around.temporary, around.home / "torch"),
            hidden=around.neighbour,
        )
        wrong: list[str] = []
        try:
            self._job.body(case)
        except Wrong as error:
            wrong.append(str(error))
        except Forbidden:
            pass  # the guard keeps what it forbade, also if a case hides it
        except Exception as error:
            wrong.append(_told(error))
        finally:
            self._guard.rest()
        wrong += self._guard.forbidden
        if MARKER in os.listdir(folder):
            wrong.append(f"{case.called}: the data was run as code")
        if SECRET in case.printed:
            wrong.append(f"{case.called}: prints a file outside of its folder")
        os.chdir(around.cases)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(around.home / "torch", ignore_errors=True)
        wrong += [f"{case.called}: changed {name}" for name in around.changes()]
        for each in dict.fromkeys(wrong):
            self._tell(number, each)

    def _tell(self, number: int, what: str) -> None:
        with open(self._findings, "a", encoding="utf-8") as file:
            file.write(json.dumps({"case": number, "what": what[:500]}) + "\n")


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "torchproof" in frame.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return f"{type(error).__name__}: {error!s:.200} at {where}"


def _cpu(pid: int) -> tuple[float, bool]:
    """The seconds that a process was on the CPU, and whether it waits for it now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended
        return 0.0, True
    return (int(fields[11]) + int(fields[12])) / _TICKS, fields[0] == "R"


def _end(pid: int) -> tuple[int, resource.struct_rusage]:
    """Asks for the stack, then kills the process and all of its session."""
    os.kill(pid, signal.SIGUSR1)  # may wake it up: what it does then does not count
    time.sleep(0.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def _signal_name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else "exit code"


def _data_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(r"VmData:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1]) << 10
