"""What the system allows this account: processes, files, memory, shared memory."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchproof import process
from torchproof.records import MachineCheck
from torchproof.report import numbers

_GROUP = "permissions"
_FILES = 1024
_PROCESSES = 256
_SHARED_BYTES = 2**27
_MEMORY_BYTES = 2**31
_CGROUP = Path("/sys/fs/cgroup")
# Those that switch something off: their values that do, and what that means.
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
    yield _open_files()
    yield _processes()
    yield _child(child)
    yield _memory_layout()
    yield _shared_memory(Path("/dev/shm"))
    yield _memory()
    yield from _variables()


def _open_files() -> MachineCheck:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = f"{_count(soft)} (at most {_count(hard)})"
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        return MachineCheck(
            _GROUP,
            "open files",
            "degraded",
            value,
            "verbs with many processes, DataLoader workers and ranks fail with"
            " `Too many open files`",
            f"ulimit -n {max(4 * _FILES, soft)}",
        )
    return MachineCheck(_GROUP, "open files", "ok", value)


def _processes() -> MachineCheck:
    """The smaller of the account's limit and what the container has left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    left = [] if soft == resource.RLIM_INFINITY else [soft]
    most, now = _cgroup_number("pids.max"), _cgroup_number("pids.current")
    if most is not None and now is not None:
        left.append(most - now)
    value = _count(min(left, default=resource.RLIM_INFINITY))
    if left and min(left) < _PROCESSES:
        return MachineCheck(
            _GROUP,
            "processes",
            "degraded",
            value,
            "torch starts a thread or process for each core: verbs fail with `Resource"
            " temporarily unavailable`",
            "raise ulimit -u, or the pids limit of the container",
        )
    return MachineCheck(_GROUP, "processes", "ok", value)


def _child(pid: int) -> MachineCheck:
    """torchproof finds processes to end by a mark in their environment."""
    try:
        Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        return MachineCheck(
            _GROUP,
            "child processes",
            "degraded",
            f"/proc/PID/environ: {error.strerror}",
            "a process that a target detaches may outlive torchproof",
            "mount /proc without hidepid, and allow ptrace reads of own processes",
        )
    return MachineCheck(
        _GROUP, "child processes", "ok", "their environment is readable"
    )


def _memory_layout() -> MachineCheck:
    if process.aslr.is_possible():
        return MachineCheck(_GROUP, "memory layout", "ok", "can be fixed")
    return MachineCheck(
        _GROUP,
        "memory layout",
        "degraded",
        "personality(ADDR_NO_RANDOMIZE) is forbidden, or the stack limit is low",
        "measurements of small models vary more from process to process",
        "in Docker: --security-opt seccomp=unconfined",
        optional=True,
    )


def _shared_memory(folder: Path) -> MachineCheck:
    name = str(folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        said, free = error.strerror or str(error), 0
    else:
        said = f"{numbers.size(free)} free"
    if free < _SHARED_BYTES:
        return MachineCheck(
            _GROUP,
            name,
            "degraded" if free else "missing",
            said,
            "DataLoader workers, NCCL and Ray of a target may end with a bus error",
            "in Docker: --shm-size=1g or --ipc=host",
            optional=True,
        )
    return MachineCheck(_GROUP, name, "ok", said)


def _memory() -> MachineCheck:
    available = _available_bytes()
    most, now = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if most is not None and now is not None:
        available = min(available, most - now)
    cores = len(os.sched_getaffinity(0))
    value = f"{numbers.size(available)} available, {numbers.amount(cores, 'core')}"
    if available < _MEMORY_BYTES:
        return MachineCheck(
            _GROUP,
            "memory",
            "degraded",
            value,
            "the system may kill torch: compiling takes 1 to 2 GB besides the model",
            "end other programs, or raise the memory limit of the container",
        )
    return MachineCheck(_GROUP, "memory", "ok", value)


def _variables() -> Iterator[MachineCheck]:
    """Environment variables that change what torch or torchproof does."""
    plain = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    off = [name for name in _SWITCHES if os.environ.get(name, "0") not in ("", "0")]
    for name in off:
        value = f"{name}={os.environ[name]}"
        yield MachineCheck(
            "environment",
            name,
            "degraded",
            value,
            _SWITCHES[name],
            f"unset {name}",
        )
    value = " ".join(plain) or "none of those that matter is set"
    yield MachineCheck("environment", "variables", "ok", value)


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
