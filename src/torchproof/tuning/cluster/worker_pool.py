"""The workers of a search on a Ray cluster: which are joining, ready, busy or lost."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torchproof.records import UserError
from torchproof.tuning.cluster import node_shares
from torchproof.tuning.cluster.node_shares import Place
from torchproof.tuning.cluster.remote_worker import RemoteJob, RemoteWorker

_RECRUIT_S = 3.0  # between looks for nodes that joined the cluster
_ALONE_S = 15.0
_STARTS = 3  # starts of a worker in the same place
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


@dataclass(eq=False)
class RemoteHandle:
    """A worker and its current task."""

    place: Place
    where: str
    actor: Any
    state: str = "joining"  # then joined, preparing, ready
    reference: Any = None  # Ray's reference of the running call
    job: Any = None
    until: float = 0.0
    ended: str = ""

    def ask(self, name: str, *arguments: Any) -> Any:
        return self.actor.do.remote(name, *arguments)

    def give(self, job: Any, limit_s: float) -> None:
        self.job, self.until = job, time.monotonic() + limit_s
        self.reference = self.ask("trial", job.candidate, limit_s)


@dataclass
class WorkerPool:
    """Workers on every node that equals the first one; `said` are progress lines."""

    remote_job: RemoteJob
    remotes: list[RemoteHandle] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    model: dict[str, Any] | None = None  # the environment of the first worker
    limit_s: float = 0.0
    _first: str = ""
    _number: int = 0
    _looked: float = -math.inf
    _alone_since: float = math.inf
    _on_gpus: bool | None = None  # decided once: the first nodes may be lost
    _starts: Counter[Place] = field(default_factory=Counter)
    _left_out: dict[str, str] = field(default_factory=dict)  # nodes, and why

    # -- workers by state --------------------------------------------------------------

    @property
    def joining(self) -> list[RemoteHandle]:
        return [each for each in self.remotes if each.state == "joining"]

    @property
    def joined(self) -> list[RemoteHandle]:
        return [each for each in self.remotes if each.state != "joining"]

    @property
    def ready(self) -> list[RemoteHandle]:
        return [each for each in self.remotes if each.state == "ready"]

    @property
    def idle(self) -> list[RemoteHandle]:
        return [each for each in self.ready if each.job is None]

    @property
    def busy(self) -> list[RemoteHandle]:
        return [each for each in self.remotes if each.job is not None]

    @property
    def node_count(self) -> int:
        return len({each.place.node for each in self.ready})

    def pending(self) -> dict[Any, RemoteHandle]:
        """The references of running calls, with their workers."""
        going = [each for each in self.remotes if each.reference is not None]
        return {each.reference: each for each in going}

    def why_none(self) -> str:
        if self._left_out:
            return next(iter(self._left_out.values()))
        needed = "a free GPU" if self._on_gpus else "all its CPUs free"
        return f"no node of the cluster has {needed}"

    def assert_some(self) -> None:
        """Fail if there has been no worker for a while."""
        if self.remotes:
            self._alone_since = math.inf
            return
        self._alone_since = min(self._alone_since, time.monotonic())
        if time.monotonic() - self._alone_since > _ALONE_S:
            raise UserError("the cluster has no usable node left")

    # -- workers that join -------------------------------------------------------------

    def recruit(self) -> None:
        """Start a worker in every free place of every node."""
        if time.monotonic() - self._looked < _RECRUIT_S:
            return
        self._looked = time.monotonic()
        nodes = _nodes()
        if self._on_gpus is None:
            self._on_gpus = node_shares.wants_gpus(self.remote_job.plan.device, nodes)
        occupied = {remote.place for remote in self.remotes}
        alone = not self.remote_job.shares_caches
        for place in node_shares.places(nodes, on_gpus=self._on_gpus, alone=alone):
            left_out = place.node in self._left_out
            if place not in occupied and not left_out and self._starts[place] < _STARTS:
                self._start(place)

    def _start(self, place: Place) -> None:
        self._starts[place] += 1
        self._number += 1
        scheduling = NodeAffinitySchedulingStrategy(place.node, soft=False)
        remote = ray.remote(RemoteWorker).options(
            scheduling_strategy=scheduling, **place.claim
        )
        actor = remote.remote(self.remote_job, self._number, place.where)
        remote = RemoteHandle(place, place.where, actor)
        remote.reference = actor.join.remote(place.cpus, place.gpus)
        self.remotes.append(remote)

    def like(
        self, first: RemoteHandle, environment: Mapping[str, Any], limit_s: float
    ) -> None:
        """Require all other nodes to equal this worker's node, and make it ready."""
        self.model = {name: environment.get(name) for name in _ALIKE}
        self.limit_s, self._first = limit_s, first.where
        first.state = "ready"
        for remote in self.remotes:
            if remote.state == "joined":
                self._prepare(remote)

    def _prepare(self, remote: RemoteHandle) -> None:
        """Compute reference outputs and start eager before the first trial."""
        remote.state = "preparing"
        remote.reference = remote.ask("probe", self.limit_s)

    def welcome(self, remote: RemoteHandle, ending: str, value: Any) -> None:
        """Advance a worker that joined or prepared to its next state, or remove it."""
        if ending != "done":
            self._leave_out(remote, value)
        elif remote.state == "joining":
            remote.state, remote.where = "joined", value
            if self.model is not None:
                self._prepare(remote)
        elif differing := self._differing(value.environment):
            self._leave_out(remote, differing)
        else:
            remote.state = "ready"
            self.said.append(f"{remote.where} is ready")

    def _differing(self, environment: Mapping[str, Any]) -> str | None:
        for name, value in (self.model or {}).items():
            if environment.get(name) != value:
                remote_value = environment.get(name)
                return f"its {name} is {remote_value}, that of {self._first} is {value}"
        return None

    # -- workers that leave ------------------------------------------------------------

    def _leave_out(self, remote: RemoteHandle, why: str) -> None:
        message = f"{remote.where} is not used: {why}"
        self._left_out[remote.place.node] = message
        self.said.append(message)
        self._remove(remote)

    def lose(self, remote: RemoteHandle, error: Exception) -> None:
        remote.ended = _why(error)
        if remote.state == "joining":  # it would fail again the next time
            self._leave_out(remote, remote.ended)
            return
        self.said.append(f"{remote.where} is lost: {remote.ended}")
        self._remove(remote)

    def _remove(self, remote: RemoteHandle) -> None:
        self.remotes.remove(remote)
        with contextlib.suppress(Exception):  # it may still run
            ray.kill(remote.actor)

    def close(self) -> None:
        """End all workers; their child processes end with them."""
        for remote in list(self.remotes):
            self._remove(remote)


def _nodes() -> list[dict[str, Any]]:
    """The nodes that are alive, this machine's node first."""
    this_node = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(
        alive, key=lambda n: (n["NodeID"] != this_node, n["NodeManagerAddress"])
    )


def _why(error: Exception) -> str:
    """A one-line reason from Ray's error message of many lines."""
    message = str(error)
    if "No module named 'torchproof" in message:
        return "torchproof is not installed on it"
    if isinstance(error, OutOfMemoryError) or "memory pressure" in message:
        return "the node ran out of memory"
    if "its node has died" in message or "node was terminated" in message:
        return "the node left the cluster"
    if isinstance(error, TimeoutError):
        return message
    return "its process ended"
