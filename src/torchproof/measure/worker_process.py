"""The child process of an arm, started with an environment of its own and asked."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import psutil

from torchproof.process import parent_death
from torchproof.records import UserError
from torchproof.strategies import NotApplicable

_ARM = "torchproof.measure.strategy_worker"
_ENDS_S = 5.0  # after its last answer; a thread of the target's may keep it from that
# Caches on other machines would make a start warm that is called cold.
NO_REMOTE_CACHES = {
    f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "0"
    for name in ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE", "BUNDLED_AUTOTUNE")
}


class WorkerError(Exception):
    """An arm that could not do what it was told, in one line."""


class WorkerProcess:
    """The child process of an arm, asked one thing at a time."""

    def __init__(
        self,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        quiet: bool,
        layout: int = 0,
    ) -> None:
        read, write = os.pipe()
        told = json.dumps({**job, "replies": write})
        output = subprocess.DEVNULL if quiet else sys.stderr
        told_of = {**NO_REMOTE_CACHES, **environment, **parent_death.parent()}
        self._popen = parent_death.begun(
            lambda: subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torchproof.process.aslr",
                    str(layout),
                    _ARM,
                    told,
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(write,),
                env={**os.environ, **told_of},
                start_new_session=True,
            )
        )
        os.close(write)
        self._replies = os.fdopen(read, "rb", buffering=0)
        self._heard = b""  # what came after the answer that was waited for
        self._unread = 0  # answers that nobody waited for
        self._closed = False

    def tell(self, do: str, **values: Any) -> None:
        """A command whose answer does not matter; the next question waits for it."""
        assert self._popen.stdin is not None
        if self._closed:
            raise WorkerError("its process was ended")
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self._popen.stdin.flush()
        self._unread += 1

    def ask(self, do: str, limit_s: float | None, **values: Any) -> dict[str, Any]:
        """The answer to a command; `WorkerError` where there is none."""
        self.tell(do, **values)
        while self._unread:
            answer = self._read(limit_s)
            self._unread -= 1
        if not answer.pop("ok"):
            if answer.get("skips"):
                raise NotApplicable(answer["error"])
            problem = UserError if answer["usage"] else WorkerError
            raise problem(answer["error"])
        return answer

    def _read(self, limit_s: float | None) -> dict[str, Any]:
        """The next answer. Several may have come at once: no pipe tells of the rest."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._heard:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not (heard := self._waited_for(left)):
                self.close()
                raise WorkerError(f"no answer within {limit_s:.0f} s (--timeout)")
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            self.close()
            raise WorkerError("its process gave an answer that is no JSON") from None
        return answer

    def _waited_for(self, seconds: float | None) -> bytes:
        """What comes within this time; nothing if nothing does."""
        try:
            ready, _, _ = select.select([self._replies], [], [], seconds)
            heard = self._replies.read(2**16) if ready else b""
        except (OSError, ValueError):  # closed meanwhile, by another thread
            raise WorkerError("its process was ended") from None
        if ready and not heard:
            raise WorkerError(self._ended())
        return heard or b""

    def _ended(self) -> str:
        try:
            code = self._popen.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self.close()
            return "its process stopped answering"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def close(self) -> None:
        """Ends the process and everything it started."""
        if self._closed:  # its number may be another's by then
            return
        self._closed = True
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._popen.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self._popen.wait()
        self._replies.close()


class WorkerProcesses:
    """Those of a session, whose threads begin them. Once closed, none is begun."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._closed = quiet, False
        self._lock, self._kept = threading.Lock(), list[WorkerProcess]()

    def begin(
        self, job: Mapping[str, Any], environment: Mapping[str, str], layout: int = 0
    ) -> WorkerProcess:
        with self._lock:  # or one could be begun after all were ended
            self._assert_open()
            process = WorkerProcess(job, environment, quiet=self._quiet, layout=layout)
            self._kept.append(process)
        return process

    def adopted(self, process: WorkerProcess) -> WorkerProcess:
        """One that somebody else began."""
        with self._lock:
            self._kept.append(process)  # ended with the others, or at once
            if self._closed:
                process.close()
            self._assert_open()
        return process

    def _assert_open(self) -> None:
        if self._closed:
            raise WorkerError("the session has ended")

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for process in self._kept:
            process.close()


def free_vram() -> int | None:
    """Bytes free on the first GPU, as the driver says; None where it is not known."""
    told = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            ["nvidia-smi", *told], capture_output=True, text=True, timeout=20
        )
        return int(answer.stdout.split()[0]) * 2**20
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
