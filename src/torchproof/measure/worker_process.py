"""Starts the processes of a worker, sends them commands and waits for their replies.

A worker runs one strategy: in one process, or in one for each of several ranks. Each
command goes to all of its processes, and their replies become one. If a rank fails or
ends, the others may wait for it in a collective: then all end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torchproof.measure.replies import USER_ERRORS, Reply, joined
from torchproof.measure.specs import StrategyJob
from torchproof.process import (
    DEVNULL,
    Child,
    Ended,
    Garbled,
    Message,
    Tick,
    follows_from_another,
    rank_variables,
    reserved_port,
    spawn,
)
from torchproof.records import RaisedError, Record

STRATEGY_WORKER = "torchproof.measure.strategy_worker"
# With remote caches, a start that is labelled cold could be warm.
NO_REMOTE_CACHES = {
    f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "0"
    for name in ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE", "BUNDLED_AUTOTUNE")
}
_SLICE_S = 0.1  # in which each rank that has not replied is waited for
_GRACE_S = 2.0  # for the other ranks to reply, after one has failed
# Each rank has its own: a cold start must not find what another rank has compiled.
_OWN_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class WorkerError(Exception):
    """A worker failed; the message is one line."""

    def __init__(self, message: str, raised: RaisedError | None = None) -> None:
        super().__init__(message)
        self.raised = raised


class WorkerTimeout(WorkerError):
    """A worker did not answer in time, and was ended."""


def nothing() -> None:
    """What happens while nothing is to be done between two waits."""


class _Process:
    """One process, which replies to its commands in their order."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._unread = 0  # replies that nobody has read
        self._last: Message = {}  # reply that was read

    def tell(self, command: Message) -> None:
        if self._last.get("ended"):
            return
        with contextlib.suppress(Ended):  # the next `poll` reports it
            self._child.channel.send(command)
        self._unread += 1

    def poll(self, seconds: float, tick: Tick) -> Message | None:
        """The reply to the last command; None if it takes longer than this.

        A process that ended has replied with an error.
        """
        while self._unread:
            try:
                self._last = self._child.receive(seconds, tick)
            except TimeoutError:
                return None
            except Garbled:
                self._end("its process sent a reply that is not JSON")
            except Ended as ending:
                self._end(f"its process {ending}")
            else:
                self._unread -= 1
        return self._last

    def _end(self, why: str) -> None:
        self.close()
        self._last = {"error": why, "ended": True}
        self._unread = 0

    def close(self) -> None:
        self._child.kill()


class Worker:
    """The processes of a worker. They handle one command at a time."""

    def __init__(
        self,
        job: Record,
        environment: Mapping[str, str],
        *,
        quiet: bool,
        layout: int = 0,
        module: str = STRATEGY_WORKER,
        ranks: int | None = None,
    ) -> None:
        self._port: socket.socket | None = None
        self._processes: list[_Process] = []
        variables = (
            [environment] if ranks is None else self._of_ranks(environment, ranks)
        )
        try:
            for each in variables:
                child = spawn(
                    "-m",
                    module,
                    json.dumps(job.to_json()),
                    environment={**NO_REMOTE_CACHES, **each},
                    output=DEVNULL if quiet else None,
                    layout=layout,
                )
                self._processes.append(_Process(child))
        except BaseException:
            self.close()
            raise

    def _of_ranks(
        self, environment: Mapping[str, str], count: int
    ) -> list[dict[str, str]]:
        try:
            self._port = reserved_port()
        except OSError as error:
            raise WorkerError(str(error)) from None
        port = self._port.getsockname()[1]
        return [
            _variables(rank, environment) | rank_variables(rank, count, port)
            for rank in range(count)
        ]

    def tell(self, do: str, **values: Any) -> None:
        """Sends a command and does not wait for its reply."""
        for process in self._processes:
            process.tell({"do": do, **values})

    def ask(
        self, kind: type[Reply], do: str, limit_s: float | None, **values: Any
    ) -> Reply:
        """Sends a command and returns its reply; raises `WorkerError` on failure."""
        self.tell(do, **values)
        return self.reply(kind, limit_s)

    def reply(
        self, kind: type[Reply], limit_s: float | None, tick: Tick = nothing
    ) -> Reply:
        """Waits for the replies to all commands, with `tick` meanwhile; the last."""
        answers = self.wait(limit_s, tick)
        if any("error" in answer for answer in answers.values()):
            _raise_error(_blamed(answers, len(self._processes)))
        ranks = range(len(self._processes))
        return joined([kind.from_json(answers[rank]["reply"]) for rank in ranks])

    def wait(self, limit_s: float | None, tick: Tick = nothing) -> dict[int, Message]:
        """The last reply of each rank, in the order of arrival; an error ends the wait.

        Raises `WorkerTimeout` if a rank did not reply and none has failed.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        answers: dict[int, Message] = {}
        failed = False
        while waiting := [r for r in range(len(self._processes)) if r not in answers]:
            for rank in waiting:
                answer = self._processes[rank].poll(_SLICE_S / len(waiting), tick)
                if answer is not None:
                    answers[rank] = answer
                    failed = failed or "error" in answer
            now = time.monotonic()
            if failed:
                until = min(until or now + _GRACE_S, now + _GRACE_S)
            if until is not None and now >= until:
                break
        if waiting := [rank for rank in waiting if rank not in answers]:
            self.close()
            if not failed:
                late = f"no answer within {limit_s:.0f} s (--timeout)"
                raise WorkerTimeout(late + self._named(waiting))
        return answers

    def _named(self, waiting: Sequence[int]) -> str:
        """` from rank 1`; nothing if no rank has replied."""
        if len(waiting) == len(self._processes):
            return ""
        word = "rank" if len(waiting) == 1 else "ranks"
        return f" from {word} {', '.join(map(str, waiting))}"

    def close(self) -> None:
        """Kills its processes and everything they started."""
        for process in self._processes:
            process.close()
        if self._port is not None:
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


def _raise_error(answer: Message) -> NoReturn:
    """Raises the error that a worker replied."""
    for kind in USER_ERRORS:
        if answer.get("kind") == kind.__name__:
            raise kind(answer["error"], details=answer["details"])
    raised = answer.get("raised")
    raise WorkerError(
        answer["error"], None if raised is None else RaisedError.from_json(raised)
    )


class Workers:
    """The workers of a session. After `close`, none can start."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._closed = False
        self._lock = threading.Lock()
        self._started: list[Worker] = []

    def begin(
        self, job: StrategyJob, environment: Mapping[str, str], layout: int = 0
    ) -> Worker:
        with self._lock:  # a process must not start while `close` runs
            if self._closed:
                raise WorkerError("the session has ended")
            worker = Worker(
                job, environment, quiet=self._quiet, layout=layout, ranks=job.ranks
            )
            self._started.append(worker)
        return worker

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for worker in self._started:
            worker.close()


def free_vram() -> int | None:
    """The free bytes of the first visible GPU; None if the driver does not say."""
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if first := os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip():
        query += ["-i", first]
    try:
        answer = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=20
        )
        return int(answer.stdout.split()[0]) * 2**20
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
