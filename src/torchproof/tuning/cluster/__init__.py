"""The executor for a Ray cluster: passes each call to the process that talks to Ray."""

from __future__ import annotations

import pickle
import uuid
from importlib.util import find_spec
from typing import Any

from torchproof.measure import Replayed, WorkerError
from torchproof.process import Ended, packed, spawn, unpacked
from torchproof.records import Measurement, Trial, UserError
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.cluster.remote_worker import remote_job
from torchproof.tuning.executors import ExecutorLost, Task
from torchproof.tuning.trial_worker import Finalists, Progress

_DRIVER = "torchproof.tuning.cluster.driver"
_START_S = 120.0  # to import Ray, on a slow disk or a busy machine
_CONNECT_S = 20.0
_CLOSE_S = 10.0


class Cluster:
    """Runs trials on the workers of a Ray cluster.

    Ray runs in a process of its own: it takes minutes to give up on an address, ends
    its process when the head node disappears, and writes to stdout and stderr.
    """

    def __init__(self, task: Task, progress: Progress, address: str) -> None:
        if find_spec("ray") is None:
            raise UserError("--ray needs Ray: pip install torchproof[ray]")
        self._address, self._progress = address, progress
        self._nodes = 0
        search = uuid.uuid4().hex[:12]
        job = remote_job(task.plan, search, shares_caches=task.shares_caches)
        with open(task.folder / "ray.log", "wb") as log:
            self._driver = spawn("-m", _DRIVER, output=log)
        self._ask("ready", timeout_s=_START_S)
        progress(f"connecting to Ray at {address}")
        self._ask("connect", address, job, timeout_s=_CONNECT_S)

    @property
    def name(self) -> str:
        """The address, and the number of all nodes that were ever ready for trials."""
        nodes = "1 node" if self._nodes == 1 else f"{self._nodes} nodes"
        return f"Ray at {self._address}: {nodes}"

    def _ask(self, name: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        try:
            call = packed(pickle.dumps((name, arguments)))
            message = self._driver.ask({"call": call}, timeout_s)
            while "progress" in message:
                self._progress(message["progress"])
                message = self._driver.receive(timeout_s)
        except TimeoutError:
            self._driver.kill()  # it hangs in Ray, and has no workers yet
            raise self._lost(f"no cluster answered within {timeout_s:.0f} s") from None
        except Ended:
            raise self._lost("the connection to it was lost") from None
        if "failed" in message:
            raise self._lost(message["failed"])
        if "refused" in message:
            raise WorkerError(message["refused"])
        self._nodes = max(self._nodes, message["nodes"])
        return pickle.loads(unpacked(message["answer"]))

    def _lost(self, why: str) -> ExecutorLost:
        self.close()
        return ExecutorLost(f"--ray {self._address}: {why}")

    # -- the Executor protocol ---------------------------------------------------------

    def probe(self, limit_s: float) -> Eager:
        eager: Eager = self._ask("probe", limit_s)
        return eager

    def slots(self) -> int:
        return int(self._ask("slots"))

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        self._ask("submit", candidate, limit_s)

    def wait(self, seconds: float) -> list[Trial]:
        trials: list[Trial] = self._ask("wait", seconds)
        return trials

    def compare(self, finalists: Finalists, rounds: int) -> tuple[Measurement, ...]:
        return tuple(self._ask("compare", list(finalists), rounds))

    def replay(
        self, candidate: Candidate, base: Candidate, count: int, limit_s: float
    ) -> Replayed:
        replayed: Replayed = self._ask("replay", candidate, base, count, limit_s)
        return replayed

    def close(self) -> None:
        """Let the driver end its workers, then end it."""
        try:
            self._driver.channel.send({"close": True})
            self._driver.wait(_CLOSE_S)
        except (Ended, TimeoutError):
            pass  # it is killed: Ray ends the workers of a driver that is gone
        finally:
            self._driver.kill()
