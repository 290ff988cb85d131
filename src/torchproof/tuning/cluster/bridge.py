"""The process that talks to Ray, so that the search does not have to.

Ray's client takes minutes to give up on an address, ends its process when the head node
disappears, and writes to stdout and stderr. The bridge takes a `RemoteJob` and then
requests over a pipe; it sends trials, answers and the number of workers.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import RayError

from torchproof.measure import WorkerError
from torchproof.process import parent_death
from torchproof.records import Trial, UserError
from torchproof.tuning.candidate import Candidate, Eager
from torchproof.tuning.cluster.remote_worker import RemoteJob
from torchproof.tuning.cluster.worker_pool import RemoteHandle, WorkerPool

TRIES = 3  # attempts at a trial whose worker is lost
_STALLED_S = 600.0  # a trial that exceeds twice its limit by this much has stalled
_JOIN_S = 60.0
_TOGETHER_S = 10.0
_REACH_S = 5.0


class Gone(Exception):
    """The search has ended, or asked the bridge to end."""


@dataclass
class Job:
    """A submitted trial; `begun` is when a worker first received it."""

    candidate: Candidate
    limit_s: float
    tries: int = 0
    begun: float = 0.0
    because: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """The time limit less the time that lost workers used, at least half of it."""
        used = time.monotonic() - self.begun if self.begun else 0.0
        return max(self.limit_s - used, self.limit_s / 2)

    def lost(self) -> Trial:
        spec = self.candidate
        why = f"its worker was lost {self.tries} times: {self.because[-1]}"
        return Trial(spec.name, spec.stage, "lost", why, limit_s=self.limit_s)


class Bridge:
    """Serves the requests that arrive over the pipe, on the workers of the pool."""

    def __init__(self, pipe: Connection, pool: WorkerPool) -> None:
        self.pipe, self.pool = pipe, pool
        self._requests: deque[tuple[Any, ...]] = deque()
        self._waiting: deque[Job] = deque()
        self._finals: list[tuple[str, tuple[Any, ...]]] = []
        self._finalist: RemoteHandle | None = None
        self._sent_sizes: tuple[int, int] | None = None

    def run(self) -> None:
        self._wait_for_workers()
        while True:
            self._send_pool_size()
            self._read()
            while self._requests:
                self._take(*self._requests.popleft())
            self._assign()
            self._collect(0.2)
            self.pool.recruit()
            self.pool.assert_some()

    def _wait_for_workers(self) -> None:
        """Wait for the first worker, and briefly for others that start with it."""
        begin = time.monotonic()
        end = begin + _JOIN_S
        while time.monotonic() < end:
            self.pool.recruit()
            if not self.pool.remotes:
                break
            self._collect(0.5)
            self._read()
            if self.pool.joined and not self.pool.joining:
                return
            if self.pool.joined:
                end = min(end, time.monotonic() + _TOGETHER_S)
        if not self.pool.joined:
            raise UserError(self.pool.why_none())

    def _send_pool_size(self) -> None:
        sizes = (len(self.pool.ready), self.pool.node_count)
        if sizes != self._sent_sizes:
            self._sent_sizes = sizes
            self.pipe.send(("pool", sizes))
        for line in self.pool.said:
            self.pipe.send(("said", line))
        self.pool.said.clear()

    def _read(self) -> None:
        """Queue the requests; raise `Gone` if the search asks the bridge to end."""
        while self.pipe.poll(0.0):
            request = self.pipe.recv()
            if request[0] == "close":
                raise Gone
            self._requests.append(request)

    # -- requests ----------------------------------------------------------------------

    def _take(self, name: str, *arguments: Any) -> None:
        if name == "submit":
            self._waiting.append(Job(*arguments))
        elif name == "keep":
            for remote in self.pool.idle:
                remote.ask("keep", *arguments)  # needs no answer
        else:
            try:
                answer = ("answer", self._answer(name, *arguments))
            except WorkerError as error:
                answer = ("refused", str(error))
            self._send_pool_size()
            self.pipe.send(answer)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name == "probe":
            return self._probe(*arguments)
        if name == "cold_start":
            return self._by_one(name, *arguments)[1]
        if (name, arguments[-1]) == ("prepare_finals", 0):
            self._finals, self._finalist = [], None
        self._finals.append((name, arguments))
        return self._final()

    def _probe(self, limit_s: float) -> Eager:
        eager: Eager
        remote, eager = self._by_one("probe", limit_s)
        self.pool.like(remote, eager.environment, limit_s)
        return eager

    def _by_one(self, name: str, *arguments: Any) -> tuple[RemoteHandle, Any]:
        """A worker and its answer; if that worker is lost, another one is asked."""
        for _ in range(TRIES):
            remote = self._idle_worker()
            try:
                return remote, self._wait(remote, name, *arguments)
            except RayError as error:
                self.pool.lose(remote, error)
        raise UserError(f"{TRIES} of its workers were lost, one after the other")

    def _final(self) -> Any:
        """Run the finals on one worker; if it is lost, repeat them on another."""
        for _ in range(TRIES):
            calls = self._finals[-1:]
            if self._finalist is None or self._finalist not in self.pool.remotes:
                self._finalist, calls = self._idle_worker(), self._finals
                self.pool.said.append(f"finals: on {self._finalist.where}")
                self._send_pool_size()
                for other in self.pool.idle:
                    if other is not self._finalist:
                        other.ask("keep", ())
            try:
                return [self._wait(self._finalist, n, *g) for n, g in calls][-1]
            except RayError as error:
                self.pool.lose(self._finalist, error)
        raise UserError(f"{TRIES} of its workers were lost, one after the other")

    def _idle_worker(self) -> RemoteHandle:
        """An idle worker; the first in the list has measured eager for longest."""
        begin = time.monotonic()
        while time.monotonic() - begin < _JOIN_S:
            able = self.pool.idle or (self.pool.joined if not self.pool.model else [])
            if able:
                return able[0]
            self._read()
            self.pool.recruit()
            self.pool.assert_some()
            self._collect(0.5)
        raise UserError("the cluster has no usable node left")

    def _wait(self, remote: RemoteHandle, name: str, *arguments: Any) -> Any:
        reference = remote.ask(name, *arguments)
        while not ray.wait([reference], timeout=0.5)[0]:
            self._read()
        ending, value = ray.get(reference)
        if ending == "refused":
            raise UserError(value)
        if ending == "failed":
            raise WorkerError(value)
        if ending == "broken":
            raise UserError(f"{remote.where}: {value}")
        return value

    # -- trials ------------------------------------------------------------------------

    def _assign(self) -> None:
        for remote in self.pool.idle:
            if not self._waiting:
                return
            job = self._waiting.popleft()
            job.tries += 1
            limit_s, job.begun = job.left_s, job.begun or time.monotonic()
            remote.give(job, limit_s)
            self.pool.said.append(f"{job.candidate.name}: on {remote.where}")

    def _collect(self, seconds: float) -> None:
        """Handle the results of trials and of workers that are starting."""
        pending = self.pool.pending()
        if not pending:
            time.sleep(seconds)
            return
        done, _ = ray.wait(list(pending), timeout=seconds)
        for reference in done:
            remote = pending[reference]
            job, remote.job, remote.reference = remote.job, None, None
            try:
                ending, value = ray.get(reference)
            except RayError as error:
                self._lose(remote, job, error)
            else:
                if job is None:
                    self.pool.welcome(remote, ending, value)
                else:
                    self._send(job, remote, ending, value)
        self._give_up_stalled()

    def _send(self, job: Job, remote: RemoteHandle, ending: str, value: Any) -> None:
        if ending != "done":
            spec = job.candidate
            why = f"{remote.where}: {value}"
            value = Trial(spec.name, spec.stage, "failed", why, limit_s=job.limit_s)
        self.pipe.send(("trial", replace(value, where=remote.where)))

    def _lose(self, remote: RemoteHandle, job: Job | None, error: Exception) -> None:
        self.pool.lose(remote, error)
        if job is None:
            return
        job.because.append(remote.ended)
        if job.tries < TRIES:
            self._waiting.appendleft(job)
            self.pool.said.append(f"{job.candidate.name}: restarts on another worker")
        else:
            self.pipe.send(("trial", job.lost()))

    def _give_up_stalled(self) -> None:
        for remote in list(self.pool.busy):
            job = remote.job
            if job and time.monotonic() > remote.until + job.limit_s + _STALLED_S:
                remote.job = None
                self._lose(remote, job, TimeoutError("it does not answer"))


def connect(address: str) -> None:
    """Connect to a running cluster; never start one."""
    if address == "local":
        raise UserError(
            "this is not the address of a cluster: use HOST:PORT, or auto on a node"
        )
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _REACH_S).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"nothing answers at this address ({error})") from None
    try:
        ray.init(address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises many types, with messages of many lines
        message = " ".join(str(error).split()) or type(error).__name__
        raise UserError(message.partition(". ")[0][:200]) from None


def main(descriptor: int) -> None:
    """Serve the search at the other end of the pipe until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search decides when it ends
    pipe = Connection(descriptor)
    address, remote_job = pipe.recv()
    assert isinstance(remote_job, RemoteJob)
    try:
        connect(address)
        pipe.send(("connected", None))
        pool = WorkerPool(remote_job)
        try:
            Bridge(pipe, pool).run()
        finally:
            pool.close()
    except (Gone, EOFError, BrokenPipeError):
        return
    except UserError as error:
        pipe.send(("failed", str(error)))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    parent_death.hold()
    os.environ.pop("RAY_ADDRESS", None)  # the search names the cluster
    main(int(sys.argv[1]))
