"""Runs one strategy on several ranks: a worker process for each, and joined replies.

Takes a job with a number of ranks. A group has the methods of a `WorkerProcess`: each
command goes to all ranks, and their replies become one. If a rank fails or ends, the
group ends too: the other ranks may wait for it in a collective.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchproof.measure.replies import Reply, joined
from torchproof.measure.specs import StrategyJob
from torchproof.measure.worker_process import (
    WorkerError,
    WorkerInterface,
    WorkerProcess,
    WorkerTimeout,
    nothing,
)
from torchproof.process import (
    Message,
    Tick,
    follows_from_another,
    rank_variables,
    reserved_port,
)

_SLICE_S = 0.02  # how long to wait for one rank before looking at the next
_GRACE_S = 2.0  # for the other ranks to reply, after one has failed
# Each rank has its own: a cold start must not find what another rank has compiled.
_OWN_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def _blamed(answers: Mapping[int, Message], count: int) -> Message:
    """The failure that the others follow from; it names its rank.

    The answers of the `count` ranks are in the order of their arrival.
    """
    failures = {rank: answers[rank] for rank in answers if "error" in answers[rank]}

    def order(rank: int) -> tuple[bool, bool]:
        alive = not failures[rank].get("ended")
        return follows_from_another(failures[rank]["error"]) and alive, alive

    rank = min(failures, key=order)
    alike = len({failed["error"] for failed in failures.values()}) == 1
    if alike and len(failures) == count:
        return failures[rank]
    return {**failures[rank], "error": f"rank {rank}: {failures[rank]['error']}"}


class RankGroup(WorkerInterface):
    """The worker processes of all ranks. They handle one command at a time."""

    def __init__(
        self,
        job: StrategyJob,
        environment: Mapping[str, str],
        *,
        quiet: bool,
        layout: int = 0,
    ) -> None:
        assert job.ranks is not None
        try:
            self._port = reserved_port()
        except OSError as error:
            raise WorkerError(str(error)) from None
        port = self._port.getsockname()[1]
        self._ranks: list[WorkerProcess] = []
        try:
            for rank in range(job.ranks):
                variables = _variables(rank, environment)
                variables |= rank_variables(rank, job.ranks, port)
                process = WorkerProcess(job, variables, quiet=quiet, layout=layout)
                self._ranks.append(process)
        except BaseException:
            self.close()
            raise

    def tell(self, do: str, **values: Any) -> None:
        for process in self._ranks:
            process.tell(do, **values)

    def read(self, kind: type[Reply], answer: Message) -> Reply:
        """The replies of all ranks, joined."""
        return joined([kind.from_json(each) for each in answer["replies"]])

    def wait(self, limit_s: float | None, tick: Tick = nothing) -> Message:
        """Waits for the replies of all ranks; one that fails ends the wait."""
        until = None if limit_s is None else time.monotonic() + limit_s
        count, failed = len(self._ranks), False
        answers: dict[int, Message] = {}
        while len(answers) < count:
            tick()
            for rank in self._waiting(answers):
                if (answer := self._polled(rank)) is not None:
                    answers[rank] = answer
                    failed = failed or "error" in answer
            now = time.monotonic()
            if failed:
                until = min(until or now + _GRACE_S, now + _GRACE_S)
            if until is not None and now >= until:
                break
        if waiting := self._waiting(answers):
            self.close()
        if failed:
            return _blamed(answers, count)
        if waiting:
            raise WorkerTimeout(
                f"no answer within {limit_s:.0f} s (--timeout){self._named(waiting)}"
            )
        return {"replies": [answers[rank].get("reply", {}) for rank in range(count)]}

    def _waiting(self, answers: Mapping[int, Message]) -> list[int]:
        return [rank for rank in range(len(self._ranks)) if rank not in answers]

    def _polled(self, rank: int) -> Message | None:
        try:
            return self._ranks[rank].poll(_SLICE_S)
        except WorkerError as error:
            return {"error": str(error), "usage": False, "ended": True}

    def _named(self, waiting: Sequence[int]) -> str:
        """` from rank 1`; nothing if no rank has replied."""
        if len(waiting) == len(self._ranks):
            return ""
        word = "rank" if len(waiting) == 1 else "ranks"
        return f" from {word} {', '.join(map(str, waiting))}"

    def close(self) -> None:
        """Kills the processes of all ranks and everything they started."""
        for process in self._ranks:
            process.close()
        self._port.close()


def _variables(rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with folders of this rank's own."""
    variables = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        **environment,
    }
    for name in _OWN_FOLDERS:
        if name in environment:
            variables[name] = os.path.join(environment[name], f"rank-{rank}")
    if rank and "TORCH_TRACE" in environment:  # the code of rank 0 is saved
        variables["TORCH_TRACE"] = f"{environment['TORCH_TRACE']}-rank-{rank}"
    return variables


class WorkerProcesses:
    """The worker processes of a session. After `close`, none can start."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._closed = False
        self._lock = threading.Lock()
        self._started: list[WorkerInterface] = []

    def begin(
        self, job: StrategyJob, environment: Mapping[str, str], layout: int = 0
    ) -> WorkerInterface:
        with self._lock:  # a process must not start while `close` runs
            if self._closed:
                raise WorkerError("the session has ended")
            kind = WorkerProcess if job.ranks is None else RankGroup
            process = kind(job, environment, quiet=self._quiet, layout=layout)
            self._started.append(process)
        return process

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for process in self._started:
            process.close()
