"""Starts the process of a strategy worker, and sends it commands."""

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

_WORKER = "torchproof.measure.strategy_worker"
_ENDS_S = 5.0  # to exit after its last reply; a thread of the target may prevent that
# With remote caches, a start that is labelled cold could be warm.
NO_REMOTE_CACHES = {
    f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "0"
    for name in ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE", "BUNDLED_AUTOTUNE")
}


class WorkerError(Exception):
    """A strategy worker failed; the message is one line."""


class WorkerProcess:
    """A strategy worker in a child process. It handles one command at a time."""

    def __init__(
        self,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        quiet: bool,
        layout: int = 0,
    ) -> None:
        read, write = os.pipe()
        job_text = json.dumps({**job, "replies": write})
        output = subprocess.DEVNULL if quiet else sys.stderr
        variables = {**NO_REMOTE_CACHES, **environment, **parent_death.parent()}
        self._popen = parent_death.begun(
            lambda: subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torchproof.process.aslr",
                    str(layout),
                    _WORKER,
                    job_text,
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(write,),
                env={**os.environ, **variables},
                start_new_session=True,
            )
        )
        os.close(write)
        self._replies = os.fdopen(read, "rb", buffering=0)
        self._buffer = b""  # bytes after the last reply that was read
        self._unread = 0  # replies that nobody has read
        self._closed = False

    def tell(self, do: str, **values: Any) -> None:
        """Sends a command and does not wait for its reply."""
        assert self._popen.stdin is not None
        if self._closed:
            raise WorkerError("its process was closed")
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self._popen.stdin.flush()
        self._unread += 1

    def ask(self, do: str, limit_s: float | None, **values: Any) -> dict[str, Any]:
        """Sends a command and returns its reply; raises `WorkerError` on failure."""
        self.tell(do, **values)
        while self._unread:
            answer = self._read(limit_s)
            self._unread -= 1
        if not answer.pop("ok"):
            if answer.get("skips"):
                raise NotApplicable(answer["error"])
            error_type = UserError if answer["usage"] else WorkerError
            raise error_type(answer["error"])
        return answer

    def _read(self, limit_s: float | None) -> dict[str, Any]:
        """Returns the next reply. A read may bring several; the rest stays buffered."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            if not (data := self._receive(remaining)):
                self.close()
                raise WorkerError(f"no answer within {limit_s:.0f} s (--timeout)")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            self.close()
            raise WorkerError("its process sent a reply that is not JSON") from None
        return answer

    def _receive(self, seconds: float | None) -> bytes:
        """Returns the bytes that arrive within this time; empty on a timeout."""
        try:
            ready, _, _ = select.select([self._replies], [], [], seconds)
            data = self._replies.read(2**16) if ready else b""
        except (OSError, ValueError):  # another thread closed it
            raise WorkerError("its process was closed") from None
        if ready and not data:
            raise WorkerError(self._exit_reason())
        return data or b""

    def _exit_reason(self) -> str:
        try:
            code = self._popen.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self.close()
            return "its process stopped answering"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def close(self) -> None:
        """Kills the process and everything it started."""
        if self._closed:  # the process id may belong to another process by then
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
    """The worker processes of a session. After `close`, none can start."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._closed = False
        self._lock = threading.Lock()
        self._started: list[WorkerProcess] = []

    def begin(
        self, job: Mapping[str, Any], environment: Mapping[str, str], layout: int = 0
    ) -> WorkerProcess:
        with self._lock:  # a process must not start while `close` runs
            self._assert_open()
            process = WorkerProcess(job, environment, quiet=self._quiet, layout=layout)
            self._started.append(process)
        return process

    def adopt(self, process: WorkerProcess) -> WorkerProcess:
        """Takes over a process that was started elsewhere."""
        with self._lock:
            self._started.append(process)  # closed with the others, or now
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
        for process in self._started:
            process.close()


def free_vram() -> int | None:
    """Returns the free bytes of the first GPU, or None if the driver does not say."""
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=20
        )
        return int(answer.stdout.split()[0]) * 2**20
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
