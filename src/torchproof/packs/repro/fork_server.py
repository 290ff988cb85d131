"""A process that has loaded torch, and forks one of its kind for each repro to be run.

Started by `trying` as `python nursery.py WARMTH`, so that it loads only what it needs.
Each line on stdin asks for one run: {"number", "folder", "variables", "limit_s"}. Each
line on stdout says how one ended: {"number", "code", "seconds"}; the code of one that
was late is null.
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

PROGRAM, OUTPUT = "repro.py", "output.txt"
_POLL_S = 0.01


@dataclass(frozen=True)
class _Running:
    number: int
    began: float
    limit_s: float


def main(warmth: str) -> int:
    """Serves until stdin ends; then everything that still runs is ended too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed while torch is loaded is no answer
    _warm(warmth)
    running: dict[int, _Running] = {}
    asked, rest = sys.stdin.fileno(), b""
    try:
        while True:
            ready, _, _ = select.select([asked], [], [], _POLL_S if running else None)
            if ready:
                read = os.read(asked, 2**16)
                if not read:
                    return 0
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    job = json.loads(line)
                    began = time.monotonic()
                    running[_fork(job)] = _Running(job["number"], began, job["limit_s"])
            for pid, code in _ended(running):
                run = running.pop(pid)
                seconds = time.monotonic() - run.began
                told = {"number": run.number, "code": code, "seconds": seconds}
                print(json.dumps(told), file=answers, flush=True)
    finally:
        for pid in running:
            end_family(pid)


def _ended(running: dict[int, _Running]) -> list[tuple[int, int | None]]:
    found: list[tuple[int, int | None]] = []
    for pid, run in running.items():
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            end_session(pid)  # what it left behind
            found.append((pid, os.waitstatus_to_exitcode(status)))
        elif time.monotonic() - run.began > run.limit_s:
            end_family(pid)
            os.waitpid(pid, 0)
            found.append((pid, None))
    return found


def end_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_family(pid: int) -> None:
    """Ends a process that leads a session, and everything it started."""
    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    end_session(pid)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


# -- loading torch ---------------------------------------------------------------------


def _warm(warmth: str) -> None:
    """Loads what a run will need; CUDA must not be begun before a fork."""
    # Asks NVML instead of CUDA, which cannot be used again after a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no threads before a fork
    import torch

    if warmth in ("eager", "inductor"):
        # No backward: its threads would be missing after a fork.
        compiled = torch.compile(_warming, backend=warmth)
        for size in (2, 3):
            compiled(torch.ones(size))
        torch.compiler.reset()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.execv(sys.executable, [sys.executable, __file__, "torch"])
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at


def _warming(x: Any) -> Any:
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
        _settle(job)
        code = _run()
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)
    return 0  # not reached


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _settle(job: dict[str, Any]) -> None:
    """The folder, streams, variables and modules that `python -I` would give it."""
    os.chdir(job["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, there in enumerate((nothing, output, output)):
        os.dup2(there, number)
    for stream in (sys.stdout, sys.stderr):  # what is printed stays in its order
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Of its parent's streams nothing stays open, else an end would not be seen.
    os.closerange(3, 4096)
    own = {k: os.environ[k] for k in _NURSERYS if k in os.environ}
    os.environ.clear()
    os.environ.update(own | job["variables"])
    added = {os.path.abspath(p) for p in _PYTHONPATH}
    sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) not in added]
    for name in [n for n in sys.modules if n.split(".")[0] == "torchproof"]:
        del sys.modules[name]
    sys.modules["torchproof"] = None  # type: ignore[assignment]
    sys.argv[:] = [PROGRAM]


_NURSERYS = ("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_COMPILE_THREADS")
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


def _leave(code: int) -> None:
    """Without what torch does at exit: that is for the process that loaded it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    parent_death.hold()
    sys.exit(main(sys.argv[1]))
