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
from dataclasses import dataclass, field
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


@dataclass
class _Replies:
    """What the ranks have replied so far; failures in the order of their arrival."""

    waiting: list[int]
    answers: dict[int, Message] = field(default_factory=dict)
    failures: dict[int, Message] = field(default_factory=dict)

    def note(self, rank: int, answer: Message) -> None:
        self.waiting.remove(rank)
        self.answers[rank] = answer
        if "error" in answer:
            self.failures[rank] = answer

    def failure(self, count: int) -> Message:
        """The failure that the others follow from; it names its rank."""

        def order(rank: int) -> tuple[bool, bool]:
            failed = self.failures[rank]
            follows = follows_from_another(failed["error"])
            return follows and not failed.get("ended"), not failed.get("ended")

        texts = {failed["error"] for failed in self.failures.values()}
        rank = min(self.failures, key=order)
        failed = self.failures[rank]
        if len(texts) == 1 and len(self.failures) == count:  # all ranks alike
            return failed
        return {**failed, "error": f"rank {rank}: {failed['error']}"}


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
        replies = _Replies(list(range(len(self._ranks))))
        while replies.waiting:
            tick()
            for rank in list(replies.waiting):
                self._poll(rank, replies)
            now = time.monotonic()
            if replies.failures:
                until = min(until or now + _GRACE_S, now + _GRACE_S)
            if until is not None and now >= until:
                break
        if replies.waiting:
            self.close()
        if replies.failures:
            return replies.failure(len(self._ranks))
        if replies.waiting:
            raise WorkerTimeout(
                f"no answer within {limit_s:.0f} s (--timeout)"
                f"{self._named(replies.waiting)}"
            )
        in_order = [replies.answers[rank] for rank in range(len(self._ranks))]
        return {"replies": [answer.get("reply", {}) for answer in in_order]}

    def _poll(self, rank: int, replies: _Replies) -> None:
        try:
            answer = self._ranks[rank].poll(_SLICE_S)
        except WorkerError as error:
            ended = {"error": str(error), "usage": False, "ended": True}
            replies.note(rank, ended)
            return
        if answer is not None:
            replies.note(rank, answer)

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
