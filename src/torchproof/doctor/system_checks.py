"""What the system allows this account: processes, files, memory, folders of caches."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchproof import process
from torchproof.doctor.table import Problem, failed, tried
from torchproof.records import MachineCheck, store
from torchproof.report import cache_folders, numbers

_FILES = 1024
_PROCESSES = 256
_SHARED_BYTES = 2**27
_MEMORY_BYTES = 2**31
_ROOM_BYTES = 2**30
_CGROUP = Path("/sys/fs/cgroup")
# Those that switch something off, and what that means.
_SWITCHES = {
    "TORCH_COMPILE_DISABLE": "torch.compile does nothing",
    "TORCHDYNAMO_DISABLE": "torch.compile does nothing",
    "TORCHPROOF_DISABLE": "torchproof.compile does nothing",
    "CUDA_LAUNCH_BLOCKING": "kernels run one by one: times are not those of production",
}
_VARIABLES = (
    *("CC", "CXX", "OMP_NUM_THREADS", "LD_PRELOAD", "TMPDIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"),
    *("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_TIMEOUT", "TORCHPROOF_DEADLINE_S"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF"),
    *_SWITCHES,
)


def checks(child: int) -> Iterator[MachineCheck]:
    """`child` is a process of this one."""
    yield from tried("open files", _open_files)
    yield from tried("processes", _processes)
    yield from tried("child processes", readable, child)
    yield from tried("memory layout", _memory_layout)
    yield from tried("/dev/shm", shared_memory)
    yield from tried("memory", _memory)
    yield from variables()


# -- permissions -----------------------------------------------------------------------


def _open_files() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = f"{_count(soft)} (at most {_count(hard)})"
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        raise Problem(value)
    return value


def _processes() -> str:
    """The smaller of the account's limit and what the container has left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    left = [] if soft == resource.RLIM_INFINITY else [soft]
    most, now = _cgroup_number("pids.max"), _cgroup_number("pids.current")
    if most is not None and now is not None:
        left.append(most - now)
    value = _count(min(left, default=resource.RLIM_INFINITY))
    if left and min(left) < _PROCESSES:
        raise Problem(value)
    return value


def readable(pid: int) -> str:
    """torchproof finds processes to end by a mark in their environment."""
    try:
        Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        raise Problem(f"/proc/PID/environ: {error.strerror}") from None
    return "their environment is readable"


def _memory_layout() -> str:
    if process.aslr.is_possible():
        return "can be fixed"
    raise Problem(
        "personality(ADDR_NO_RANDOMIZE) is forbidden, or the stack limit is low"
    )


def shared_memory(folder: Path = Path("/dev/shm")) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise Problem(error.strerror or str(error), "unusable") from None
    value = f"{numbers.size(free)} free"
    if free < _SHARED_BYTES:
        raise Problem(value)
    return value


def _memory() -> str:
    available = _available_bytes()
    most, now = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if most is not None and now is not None:
        available = min(available, most - now)
    cores = len(os.sched_getaffinity(0))
    value = f"{numbers.size(available)} available, {numbers.amount(cores, 'core')}"
    if available < _MEMORY_BYTES:
        raise Problem(value)
    return value


def _available_bytes() -> int:
    """Without psutil, which may be what is missing here."""
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.M)
    return int(found[1]) * 1024 if found else 0


def _cgroup_number(name: str) -> int | None:
    """A limit of the container; None if it has none."""
    try:
        return int((_CGROUP / name).read_text())
    except (OSError, ValueError):  # "max", or another version of cgroups
        return None


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


# -- environment -----------------------------------------------------------------------


def variables() -> Iterator[MachineCheck]:
    """Environment variables that change what torch or torchproof does."""
    for name, effect in _SWITCHES.items():
        if os.environ.get(name, "0") not in ("", "0"):
            value = f"{name}={os.environ[name]}"
            yield failed("switch", value, name=name, effect=effect)
    plain = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    value = " ".join(plain) or "none of those that matter is set"
    yield MachineCheck("environment", "variables", "ok", value)


# -- caches ----------------------------------------------------------------------------


def cache_checks() -> Iterator[MachineCheck]:
    """Folders that torch and torchproof write to: writable, trusted, and with room."""
    writes = {
        "inductor": "torch.compile cannot keep generated code, and fails",
        "triton": "Triton cannot keep kernels, and fails on a GPU",
    }
    for folder in cache_folders.listing():
        if folder.name in writes:
            size = numbers.size(folder.bytes) if folder.bytes else "empty"
            by = folder.chosen_by or "TORCHINDUCTOR_CACHE_DIR or TRITON_CACHE_DIR"
            words = {"name": folder.name, "without": writes[folder.name]}
            words["action"] = f"make it writable, or set {by}"
            yield from tried("cache", _folder, folder.path, size, **words)
    yield from tried("runs", _folder, store.RUNS.absolute(), "saved runs")


def nearest_folder(path: Path) -> Path:
    """The path itself, or the nearest of its parents that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def _folder(path: Path, holds: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=nearest_folder(path)) as file:
            file.write(b"torchproof")
            file.flush()
    except OSError as error:
        raise Problem(f"{path}: {error.strerror or error}") from None
    if said := _other_writers(path):
        raise Problem(f"{path}: {said}", "foreign", path=path)
    free = shutil.disk_usage(nearest_folder(path)).free
    value = f"{path}, {holds}, {numbers.size(free)} free"
    if free < _ROOM_BYTES:
        raise Problem(value, "full")
    return value


def _other_writers(path: Path) -> str:
    """Who else may write into an existing folder; a sticky one protects its files."""
    try:
        status = path.stat()
    except OSError:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "every user may write to it"
    return ""
