"""The executor for a Ray cluster, and the pipe to the process that talks to Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from torchproof.measure import WorkerError
from torchproof.process import parent_death
from torchproof.records import Measurement, Trial, UserError
from torchproof.tuning.candidate import Candidate, Eager
from torchproof.tuning.cluster.remote_worker import RemoteJob, remote_job
from torchproof.tuning.executors import Finalists, Task
from torchproof.tuning.trial_worker import Progress

_BRIDGE = "torchproof.tuning.cluster.bridge"
_CONNECT_S = 20.0
_CLOSE_S = 10.0


class Cluster:
    """Runs trials on the workers of a Ray cluster.

    If a worker is lost, its trial runs again on another one. A trial is lost only if
    that happens repeatedly.
    """

    def __init__(self, task: Task, progress: Progress, address: str) -> None:
        if find_spec("ray") is None:
            raise UserError("--ray needs Ray: pip install torchproof[ray]")
        self._address, self._progress = address, progress
        self._ready = self._nodes = self._running = 0
        self._ended: list[Trial] = []
        self._tried = False  # a trial has ended
        self._answers: list[tuple[str, Any]] = []
        self._bridge: subprocess.Popen[bytes] | None = None
        search = uuid.uuid4().hex[:12]
        job = remote_job(task.plan, search, shares_caches=task.shares_caches)
        self._log = task.folder / "ray.log"
        self._pipe = self._start(job)
        self._connect()

    @property
    def name(self) -> str:
        """The address, and the number of all nodes that were ever ready for trials."""
        nodes = "1 node" if self._nodes == 1 else f"{self._nodes} nodes"
        return f"Ray at {self._address}: {nodes}"

    def _start(self, job: RemoteJob) -> Connection:
        pipe, other = Pipe()
        program = [sys.executable, "-m", _BRIDGE, str(other.fileno())]
        with open(self._log, "wb") as log:
            self._bridge = parent_death.begun(
                lambda: subprocess.Popen(
                    program,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(other.fileno(),),
                    env={**os.environ, **parent_death.parent()},
                    start_new_session=True,
                )
            )
        other.close()
        pipe.send((self._address, job))
        return pipe

    def _connect(self) -> None:
        self._progress(f"connecting to Ray at {self._address}")
        begin = time.monotonic()
        self._connected = False
        while not self._connected:
            self._listen(0.2)
            if not self._connected and time.monotonic() - begin > _CONNECT_S:
                self.close()
                raise self._lost(f"no cluster answered within {_CONNECT_S:.0f} s")

    # -- the pipe ----------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Handle messages of the bridge; waits up to `seconds` for the first one."""
        try:
            while self._pipe.poll(seconds):
                self._hear(*self._pipe.recv())
                seconds = 0.0
        except (EOFError, OSError):
            self.close()
            raise self._lost("the connection to it was lost") from None

    def _hear(self, kind: str, value: Any) -> None:
        if kind == "failed":
            self.close()
            raise self._lost(value)
        if kind == "connected":
            self._connected = True
        elif kind == "pool":
            self._ready, nodes = value
            self._nodes = max(self._nodes, nodes)
        elif kind == "trial":
            self._running -= 1
            self._tried = True
            self._ended.append(value)
        elif kind == "said":
            self._progress(value)
        else:
            self._answers.append((kind, value))

    def _lost(self, why: str) -> UserError:
        hint = "; --resume reuses the finished trials" if self._tried else ""
        return UserError(f"--ray {self._address}: {why}{hint}")

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._send(name, *arguments)
        while not self._answers:
            self._listen(0.2)
        kind, value = self._answers.pop()
        if kind == "refused":
            raise WorkerError(value)
        return value

    def _send(self, name: str, *arguments: Any) -> None:
        try:
            self._pipe.send((name, *arguments))
        except OSError:
            self._listen(0.0)  # raises with the bridge's reason, if it sent one
            raise self._lost("the connection to it was lost") from None

    # -- the Executor protocol ---------------------------------------------------------

    def probe(self, limit_s: float) -> Eager:
        eager: Eager = self._ask("probe", limit_s)
        return eager

    def cache_in(self, folder: Path) -> None:
        """Do nothing: compiled code stays on the nodes, which may not see `folder`."""

    def slots(self) -> int:
        self._listen(0.0 if self._ready or self._running else 0.2)
        return max(0, self._ready - self._running)

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        self._running += 1
        self._send("submit", candidate, limit_s)

    def wait(self, seconds: float) -> list[Trial]:
        end = time.monotonic() + seconds
        while not self._ended and (left := end - time.monotonic()) > 0:
            self._listen(left)
        ended, self._ended = self._ended, []
        return ended

    def keep(self, names: Collection[str]) -> None:
        self._send("keep", tuple(names))

    def prepare_finals(self, finalists: Finalists, repeat: int) -> None:
        self._ask("prepare_finals", list(finalists), repeat)

    def turns(self, names: Sequence[str], rounds: int) -> tuple[Measurement, ...]:
        return tuple(self._ask("turns", list(names), rounds))

    def cold_start(self, candidate: Candidate, limit_s: float) -> tuple[float, float]:
        first_s, start_s = self._ask("cold_start", candidate, limit_s)
        return first_s, start_s

    def close(self) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is None:
            return
        try:
            self._pipe.send(("close",))
            bridge.wait(_CLOSE_S)
        except (OSError, subprocess.TimeoutExpired):
            pass  # it is killed below
        finally:
            if bridge.poll() is None:
                os.killpg(bridge.pid, signal.SIGKILL)
            bridge.wait()
            self._pipe.close()
