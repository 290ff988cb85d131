"""The process that talks to Ray: workers on every node, their trials, and the finals.

It takes calls over its channel and answers each. A worker that is lost costs only its
trial, which another worker runs again.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torchproof.measure import WorkerError
from torchproof.process import Channel, Ended, hold, packed, unpacked
from torchproof.records import Trial, UserError
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.cluster import node_shares
from torchproof.tuning.cluster.node_shares import Place
from torchproof.tuning.cluster.remote_worker import RemoteJob, RemoteWorker

TRIES = 3  # attempts at a trial whose worker is lost, and starts of a worker
_JOIN_S = 60.0
_RECRUIT_S = 3.0  # between looks for nodes that joined the cluster
_ALONE_S = 15.0  # without any worker
_REACH_S = 5.0
# These must be equal on all nodes, or their times are not comparable.
_ALIKE = (
    "torch",
    "python",
    "device",
    "gpu",
    "cuda",
    "triton",
    "machine",
    "cores",
    "threads",
)


class Gone(Exception):
    """The search has ended."""


@dataclass
class Job:
    """A submitted trial."""

    candidate: Candidate
    limit_s: float
    tries: int = 0

    def ended(self, outcome: Any, why: str) -> Trial:
        spec = self.candidate
        return Trial(spec.name, spec.stage, outcome, why, limit_s=self.limit_s)


@dataclass(eq=False)
class Remote:
    """A worker: it joins, measures eager, and is then ready for trials."""

    place: Place
    where: str
    actor: Any
    reference: Any = None  # Ray's reference of the running call
    has_joined: bool = False
    eager: Eager | None = None
    job: Job | None = None

    def ask(self, name: str, *arguments: Any) -> Any:
        return self.actor.call.remote(name, *arguments)


class Driver:
    """The other half of `Cluster`: a method for each of its calls."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.remotes: list[Remote] = []
        self._first: Remote | None = None  # all other nodes have to equal its node
        self._waiting: deque[Job] = deque()
        self._ended: list[Trial] = []
        self._finalist: Remote | None = None  # runs the finals
        self._number = 0
        self._looked, self._alone_since = -math.inf, math.inf
        self._on_gpus: bool | None = None  # decided once: the first nodes may be lost
        self._starts: Counter[Place] = Counter()
        self._left_out: dict[str, str] = {}  # nodes, and why

    def ready(self) -> None:
        """Answer that this process has imported Ray."""

    def connect(self, address: str, job: RemoteJob) -> None:
        connect(address)
        self._job = job

    @property
    def _idle(self) -> list[Remote]:
        """The ready workers; the first has measured eager for longest."""
        return [each for each in self.remotes if each.eager and not each.job]

    @property
    def node_count(self) -> int:
        return len({each.place.node for each in self.remotes if each.eager})

    def _say(self, text: str) -> None:
        self._channel.send({"progress": text})

    # -- trials ------------------------------------------------------------------------

    def probe(self, limit_s: float) -> Eager:
        """Start a worker on every node; the first that measured eager answers."""
        self._limit_s = limit_s
        begin = time.monotonic()
        while self._first is None:
            self._recruit()
            late = time.monotonic() - begin > _JOIN_S
            if not self.remotes or (
                late and not any(r.has_joined for r in self.remotes)
            ):
                raise UserError(self._why_none())
            self._collect(0.5)
        assert self._first.eager is not None
        return self._first.eager

    def slots(self) -> int:
        self._collect(0.0 if self._idle else 0.2)
        return max(0, len(self._idle) - len(self._waiting))

    def submit(self, candidate: Candidate, limit_s: float) -> None:
        self._waiting.append(Job(candidate, limit_s))
        self._assign()

    def wait(self, seconds: float) -> list[Trial]:
        end = time.monotonic() + seconds
        while not self._ended and (left := end - time.monotonic()) > 0:
            self._assign()
            self._collect(min(left, 0.5))
            self._assert_some()
        ended, self._ended = self._ended, []
        return ended

    def _assign(self) -> None:
        for remote in self._idle[: len(self._waiting)]:
            remote.job = job = self._waiting.popleft()
            job.tries += 1
            remote.reference = remote.ask("trial", job.candidate, job.limit_s)
            self._say(f"{job.candidate.name}: on {remote.where}")

    def _collect(self, seconds: float) -> None:
        """Handle the answers of workers; waits up to `seconds` for the first one."""
        self._recruit()
        pending = {each.reference: each for each in self.remotes if each.reference}
        if not pending:
            time.sleep(seconds)
            return
        done, _ = ray.wait(list(pending), timeout=seconds)
        for reference in done:
            remote = pending[reference]
            job, remote.job, remote.reference = remote.job, None, None
            try:
                value = ray.get(reference)
            except RayTaskError as error:
                self._refused(remote, job, f"{remote.where}: {error.cause}", error)
            except RayError as error:
                self._lose(remote, error, job)
            else:
                self._answered(remote, job, value)

    def _refused(
        self, remote: Remote, job: Job | None, why: str, error: RayTaskError
    ) -> None:
        if job is None:
            self._leave_out(remote, str(error.cause))
        else:
            self._ended.append(job.ended("failed", why))

    def _answered(self, remote: Remote, job: Job | None, value: Any) -> None:
        if job is not None:
            self._ended.append(replace(value, where=remote.where))
        elif not remote.has_joined:
            remote.has_joined, remote.where = True, value
            remote.reference = remote.ask("probe", self._limit_s)
        elif differing := self._differing(value):
            self._leave_out(remote, differing)
        else:
            remote.eager = value
            self._first = self._first or remote
            self._say(f"{remote.where} is ready")

    def _differing(self, eager: Eager) -> str | None:
        if self._first is None or self._first.eager is None:
            return None
        for name in _ALIKE:
            own, first = eager.environment.get(name), self._first.eager.environment
            if own != first.get(name):
                there = f"that of {self._first.where} is {first.get(name)}"
                return f"its {name} is {own}, {there}"
        return None

    # -- the finals --------------------------------------------------------------------

    def compare(self, finalists: Any, rounds: int) -> Any:
        """Run the finals on one worker; if it is lost, on another, from the start."""
        for _ in range(TRIES):
            if self._finalist not in self.remotes:
                self._finalist = self._idle_worker()
                self._say(f"finals: on {self._finalist.where}")
            assert self._finalist is not None
            try:
                return self._call(self._finalist, "compare", finalists, rounds)
            except RayError as error:
                self._lose(self._finalist, error)
        raise UserError(f"{TRIES} of its workers were lost, one after the other")

    def replay(self, *arguments: Any) -> Any:
        remote = self._idle_worker()
        try:
            return self._call(remote, "replay", *arguments)
        except RayError as error:
            self._lose(remote, error)
            raise WorkerError(f"{remote.where} was lost") from None

    def _idle_worker(self) -> Remote:
        end = time.monotonic() + _JOIN_S
        while not self._idle:
            self._collect(0.5)
            self._assert_some()
            if time.monotonic() > end:
                raise UserError("the cluster has no usable node left")
        return self._idle[0]

    def _call(self, remote: Remote, name: str, *arguments: Any) -> Any:
        reference = remote.ask(name, *arguments)
        while not ray.wait([reference], timeout=0.5)[0]:
            self._assert_wanted()
        try:
            return ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, UserError | WorkerError):
                raise error.cause from None
            raise UserError(f"{remote.where}: {error.cause!r}") from None

    def _assert_wanted(self) -> None:
        """The search sends nothing during a call, except that it ends."""
        with contextlib.suppress(TimeoutError):
            self._channel.receive(0.0)
            raise Gone

    # -- workers that join and leave ---------------------------------------------------

    def _recruit(self) -> None:
        """Start a worker in every free place of every node."""
        self._assert_wanted()
        if time.monotonic() - self._looked < _RECRUIT_S:
            return
        self._looked = time.monotonic()
        nodes = _nodes()
        if self._on_gpus is None:
            self._on_gpus = node_shares.wants_gpus(self._job.plan.device, nodes)
        occupied = {remote.place for remote in self.remotes}
        alone = not self._job.shares_caches
        for place in node_shares.places(nodes, on_gpus=self._on_gpus, alone=alone):
            left_out = place.node in self._left_out
            if place not in occupied and not left_out and self._starts[place] < TRIES:
                self._start(place)

    def _start(self, place: Place) -> None:
        self._starts[place] += 1
        self._number += 1
        scheduling = NodeAffinitySchedulingStrategy(place.node, soft=False)
        actor = (
            ray.remote(RemoteWorker)
            .options(scheduling_strategy=scheduling, **place.claim)
            .remote(self._job, self._number, place)
        )
        self.remotes.append(Remote(place, place.where, actor, actor.join.remote()))

    def _why_none(self) -> str:
        if self._left_out:
            return next(iter(self._left_out.values()))
        needed = "a free GPU" if self._on_gpus else "all its CPUs free"
        return f"no node of the cluster has {needed}"

    def _assert_some(self) -> None:
        """Fail if there has been no worker for a while."""
        if self.remotes:
            self._alone_since = math.inf
            return
        self._alone_since = min(self._alone_since, time.monotonic())
        if time.monotonic() - self._alone_since > _ALONE_S:
            raise UserError("the cluster has no usable node left")

    def _leave_out(self, remote: Remote, why: str) -> None:
        message = f"{remote.where} is not used: {why}"
        self._left_out[remote.place.node] = message
        self._say(message)
        self._remove(remote)

    def _lose(self, remote: Remote, error: RayError, job: Job | None = None) -> None:
        why = _why(error)
        if not remote.has_joined:  # it would fail again the next time
            self._leave_out(remote, why)
            return
        self._say(f"{remote.where} is lost: {why}")
        self._remove(remote)
        if job and job.tries < TRIES:
            self._waiting.appendleft(job)
            self._say(f"{job.candidate.name}: restarts on another worker")
        elif job:
            reason = f"its worker was lost {job.tries} times: {why}"
            self._ended.append(job.ended("lost", reason))

    def _remove(self, remote: Remote) -> None:
        self.remotes.remove(remote)
        with contextlib.suppress(Exception):  # it may still run
            ray.kill(remote.actor)

    def close(self) -> None:
        """Let idle workers clean up, then end all with their child processes."""
        ending = [each.actor.close.remote() for each in self.remotes if not each.job]
        with contextlib.suppress(Exception):  # a node may be gone
            ray.wait(ending, num_returns=len(ending), timeout=_REACH_S)
        for remote in list(self.remotes):
            self._remove(remote)


def _nodes() -> list[dict[str, Any]]:
    """The nodes that are alive, this machine's node first."""
    this_node = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(
        alive, key=lambda n: (n["NodeID"] != this_node, n["NodeManagerAddress"])
    )


def _why(error: RayError) -> str:
    """A one-line reason from Ray's error message of many lines."""
    message = str(error)
    if "No module named 'torchproof" in message:
        return "torchproof is not installed on it"
    if isinstance(error, OutOfMemoryError) or "memory pressure" in message:
        return "the node ran out of memory"
    if "its node has died" in message or "node was terminated" in message:
        return "the node left the cluster"
    return "its process ended"


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


def main() -> None:
    """Answer the calls of the search until it ends or a call fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search decides when it ends
    os.environ.pop("RAY_ADDRESS", None)  # the search names the cluster
    channel = Channel.to_parent()
    driver = Driver(channel)
    try:
        while "call" in (message := channel.receive()):
            name, arguments = pickle.loads(unpacked(message["call"]))
            try:
                answer = packed(pickle.dumps(getattr(driver, name)(*arguments)))
                channel.send({"answer": answer, "nodes": driver.node_count})
            except WorkerError as error:
                channel.send({"refused": str(error)})
    except (Gone, Ended):
        pass  # the search has ended: nobody waits for an answer
    except UserError as error:
        channel.send({"failed": str(error)})
    finally:
        driver.close()
        ray.shutdown()


if __name__ == "__main__":
    hold()
    main()
