"""Faults of the machine: files, limits and signals."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from injections import CannotInject, Injection

# -- files -----------------------------------------------------------------------------


class NoCacheFolder(Injection):
    """The cache cannot be written: its folder would lie inside a file."""

    def arm(self) -> None:
        (self.folder / "file").touch()
        self._usual = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "file" / "cache")
        self.mark.touch()

    def disarm(self) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._usual


class FullDisk(Injection):
    """No file can grow beyond a few bytes, in this process and those it starts."""

    def arm(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16, hard))
        self.mark.touch()


class FullSharedMemory(Injection):
    """/dev/shm has no room, as in a container without --shm-size."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        leave_mount_namespace()

    def arm(self) -> None:
        mount_tmpfs("/dev/shm")
        with contextlib.suppress(OSError):
            Path("/dev/shm/full").write_bytes(bytes(1 << 20))
        try:
            multiprocessing.Semaphore()
        except OSError:
            self.mark.touch()

    def disarm(self) -> None:
        _LIBC.umount2(b"/dev/shm", _DETACH)


_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NAMESPACE, _PRIVATE, _DETACH = 0x20000, 0x44000, 2


def leave_mount_namespace() -> None:
    """What this process mounts from now on is seen by it and its children alone."""
    _checked(_LIBC.unshare(_NEW_NAMESPACE))
    _checked(_LIBC.mount(b"none", b"/", None, _PRIVATE, None))


def mount_tmpfs(folder: str) -> None:
    _checked(_LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"size=4k"))


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "mount: this fault needs to be root")


class NoFiles(Injection):
    """All file descriptors are in use, in this process and those it has started."""

    def arm(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.mark.touch()
        for process in [*psutil.Process().children(recursive=True), psutil.Process()]:
            open_now = max(int(name) for name in os.listdir(f"/proc/{process.pid}/fd"))
            limit = (open_now + 1, hard)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limit)

    def disarm(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._usual)


_NOBODY = 65534
_SET_DUMPABLE, _KEEP_CAPABILITIES, _AMBIENT, _RAISE = 4, 8, 47, 2
_READ_ANYTHING = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_CAPABILITY_VERSION = 0x20080522


class NoProcesses(Injection):
    """The user may start no more processes, nor threads, which the system counts too.

    The system does not limit root: so another user runs the cell.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if os.geteuid() == 0:
            _become_nobody(folder)

    def arm(self) -> None:
        self._usual = resource.getrlimit(resource.RLIMIT_NPROC)
        limit = (1, self._usual[1])
        for process in [*psutil.Process().children(recursive=True), psutil.Process()]:
            resource.prlimit(process.pid, resource.RLIMIT_NPROC, limit)
        try:
            subprocess.run(["true"], check=False)
        except OSError:
            self.mark.touch()

    def disarm(self) -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, self._usual)


def _become_nobody(folder: Path) -> None:
    """This process goes on as another user, who may still read every file.

    Python may lie where only root can read.
    """
    os.chown(folder, _NOBODY, _NOBODY)
    os.environ["HOME"] = str(folder)
    _LIBC.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    try:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    except PermissionError as error:
        raise CannotInject(f"no other user can run the cell: {error}") from None
    _keep_reading()
    _LIBC.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # /proc/self is this user's again
    try:
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotInject(f"another user cannot start Python: {error}") from None


def _keep_reading() -> None:
    mask = sum(1 << number for number in _READ_ANYTHING)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _LIBC.capset(header, data)
    for number in _READ_ANYTHING:
        _LIBC.prctl(_AMBIENT, _RAISE, number, 0, 0)


# -- signals ---------------------------------------------------------------------------


class UserSignals(Injection):
    """The program has handlers, and that of SIGCHLD reaps whatever has ended."""

    _SIGNALS = (signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM)

    def arm(self) -> None:
        self._received: Counter[int] = Counter()
        for number in self._SIGNALS:
            signal.signal(number, self._handle)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    def _handle(self, number: int, frame: Any) -> None:
        self._received[number] += 1
        self.mark.touch()
        if number == signal.SIGCHLD:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def wrong_afterwards(self) -> list[str]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        wrong = [
            f"the handler of {number.name} was replaced"
            for number in self._SIGNALS
            if signal.getsignal(number) != self._handle
        ]
        os.kill(os.getpid(), signal.SIGTERM)
        subprocess.run(["true"], check=False)
        return wrong + [
            f"the handler of {number.name} did not run"
            for number in self._SIGNALS
            if not self._received[number]
        ]

    def disarm(self) -> None:
        for number in self._SIGNALS:
            signal.signal(number, signal.SIG_DFL)


# -- files that were left earlier ------------------------------------------------------


class _Filled(Injection):
    """Does harm to files that an earlier compilation of the same graphs has left."""

    fills_cache = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._harmed: list[Path] = []

    def was_reached(self, status: Any) -> bool:
        """Whether one of the files was read, or replaced because of it."""
        if not self.fired or not _notes_reads(self.folder):
            return self.fired
        return any(not path.exists() or _was_read(path) for path in self._harmed)

    def arm(self) -> None:
        for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*"):
            if path.is_file() and self.concerns(path):
                self.mark.touch()
                self.harm(path)

    def concerns(self, path: Path) -> bool:
        raise NotImplementedError

    def harm(self, path: Path) -> None:
        """Another file in its place: the first may be in use by this process."""
        broken = bytes(byte ^ 0xFF for byte in path.read_bytes())
        path.unlink()
        path.write_bytes(broken)
        _forget_reads(path)
        self._harmed.append(path)


def _forget_reads(path: Path) -> None:
    os.utime(path, (0, path.stat().st_mtime))


def _was_read(path: Path) -> bool:
    return path.stat().st_atime > 0


def _notes_reads(folder: Path) -> bool:
    """Whether the file system notes when a file was read; some are told not to."""
    path = folder / "read"
    path.write_text("x")
    _forget_reads(path)
    path.read_text()
    return _was_read(path)


class BrokenEntries(_Filled):
    def concerns(self, path: Path) -> bool:
        return bool({"fxgraph", "aotautograd"}.intersection(path.parts))


class BrokenLibraries(_Filled):
    def concerns(self, path: Path) -> bool:
        return path.suffix == ".so"


class LocksHeld(BrokenEntries):
    """The files are gone, and somebody else holds all locks."""

    def arm(self) -> None:
        super().arm()
        self._held = []
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        for path in folder.rglob("*.lock"):
            file = path.open("a")
            fcntl.flock(file, fcntl.LOCK_EX)
            self._held.append(file)

    def was_reached(self, status: Any) -> bool:
        """Nothing else shows that a lock was waited for."""
        return any(item.phase == "lock" for item in status.fallbacks)

    def concerns(self, path: Path) -> bool:
        return super().concerns(path) or path.suffix == ".so"

    def harm(self, path: Path) -> None:
        path.unlink()
