"""A fork server: a process that imports torch once and forks a child for each repro.

`repro_runner` starts it as `python fork_server.py PRELOAD`, so it loads only what it
needs. Each line on stdin is a job: {"number", "folder", "variables", "limit_s"}. Each
line on stdout is a result: {"number", "code", "seconds"}; the code is null if the repro
exceeded its limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

import psutil

from torchproof.process import parent_death

PROGRAM = "repro.py"
OUTPUT = "output.txt"
_POLL_S = 0.01


@dataclass(frozen=True)
class _Job:
    number: int
    start: float
    limit_s: float


def main(preload: str) -> int:
    """Serves until stdin ends, then kills all children that still run."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # torch may print while it is imported
    _preload(preload)
    running: dict[int, _Job] = {}
    jobs = sys.stdin.fileno()
    rest = b""
    try:
        while True:
            ready, _, _ = select.select([jobs], [], [], _POLL_S if running else None)
            if ready:
                chunk = os.read(jobs, 2**16)
                if not chunk:
                    return 0
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    job = json.loads(line)
                    start = time.monotonic()
                    running[_fork(job)] = _Job(job["number"], start, job["limit_s"])
            for pid, code in _ended(running):
                run = running.pop(pid)
                seconds = time.monotonic() - run.start
                result = {"number": run.number, "code": code, "seconds": seconds}
                print(json.dumps(result), file=results, flush=True)
    finally:
        for pid in running:
            end_process_tree(pid)


def _ended(running: dict[int, _Job]) -> list[tuple[int, int | None]]:
    endings: list[tuple[int, int | None]] = []
    for pid, run in running.items():
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            end_session(pid)  # processes that it left behind
            endings.append((pid, os.waitstatus_to_exitcode(status)))
        elif time.monotonic() - run.start > run.limit_s:
            end_process_tree(pid)
            os.waitpid(pid, 0)
            endings.append((pid, None))
    return endings


def end_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_process_tree(pid: int) -> None:
    """Kills a session leader and all processes that it started."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    end_session(pid)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


# -- loading torch ---------------------------------------------------------------------


def _preload(preload: str) -> None:
    """Imports torch and warms a backend; CUDA must not be initialised before a fork."""
    # Makes torch ask NVML instead of CUDA, which does not work after a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no threads before a fork
    import torch

    if preload in ("eager", "inductor"):
        # No backward pass: the threads of autograd would be missing after a fork.
        compiled = torch.compile(_example, backend=preload)
        for size in (2, 3):
            compiled(torch.ones(size))
        torch.compiler.reset()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.execv(sys.executable, [sys.executable, __file__, "torch"])
    gc.collect()
    gc.freeze()  # else a collection in a child would copy every page it touches


def _example(x: Any) -> Any:
    return (x * 2).relu() + 1


# -- one run ---------------------------------------------------------------------------


def _fork(job: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        _die_with(parent)
        _isolate(job)
        code = _run()
    except BaseException:
        traceback.print_exc()
    finally:
        _exit(code)
    return 0  # not reached


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _isolate(job: dict[str, Any]) -> None:
    """Sets the directory, streams, variables and modules as `python -I` would."""
    os.chdir(job["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    for stream in (sys.stdout, sys.stderr):  # keeps the order of printed lines
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # An inherited pipe that stays open would hide the end of the server.
    os.closerange(3, 4096)
    variables = {k: os.environ[k] for k in _OWN_VARIABLES if k in os.environ}
    os.environ.clear()
    os.environ.update(variables | job["variables"])
    added = {os.path.abspath(p) for p in _PYTHONPATH}
    sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) not in added]
    for name in [n for n in sys.modules if n.split(".")[0] == "torchproof"]:
        del sys.modules[name]
    sys.modules["torchproof"] = None  # type: ignore[assignment]
    sys.argv[:] = [PROGRAM]


_OWN_VARIABLES = ("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_COMPILE_THREADS")
_PYTHONPATH = [
    os.path.dirname(os.path.abspath(__file__)),
    *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
]


def _run() -> int:
    try:
        runpy.run_path(os.path.abspath(PROGRAM), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _exit(code: int) -> None:
    """Exits without torch's exit handlers, which belong to the server process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    parent_death.hold()
    sys.exit(main(sys.argv[1]))
