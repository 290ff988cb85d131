"""The workers of a search on a Ray cluster: who is there, ready, busy or lost.

One worker for each GPU, with its share of the node's CPUs; on a cluster without GPUs
one for each node, with all its CPUs, since trials that share a CPU disturb each other.
"""

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
from torchproof.tuning.cluster.outpost import Errand, Outpost

_RECRUIT_S = 3.0  # between looks for nodes that joined the cluster
_ALONE_S = 15.0
_STARTS = 3  # of workers on the same place of a node
# What has to be the same on all nodes for their times to be of one thing.
_ALIKE: tuple[str, ...] = ("torch", "python", "device", "gpu", "cuda", "triton")
_ALIKE += ("machine", "cores", "threads")


@dataclass(eq=False)
class Station:
    """A worker, and what it is doing. `place` is its node and its number there."""

    place: tuple[str, int]
    where: str
    actor: Any
    state: str = "joining"  # then joined, preparing, ready
    reference: Any = None  # of what it is doing
    job: Any = None
    until: float = 0.0
    ended: str = ""

    def ask(self, name: str, *given: Any) -> Any:
        return self.actor.do.remote(name, *given)

    def give(self, job: Any, limit_s: float) -> None:
        self.job, self.until = job, time.monotonic() + limit_s
        self.reference = self.ask("trial", job.candidate, limit_s)


@dataclass
class Crew:
    """Workers on every node that is like the first one; `said` is for people."""

    errand: Errand
    stations: list[Station] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    model: dict[str, Any] | None = None  # the environment of the first worker
    limit_s: float = 0.0
    _first: str = ""
    _number: int = 0
    _looked: float = -math.inf
    _alone_since: float = math.inf
    _starts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _left_out: dict[str, str] = field(default_factory=dict)  # nodes, and why

    # -- who is there ------------------------------------------------------------------

    @property
    def joining(self) -> list[Station]:
        return [each for each in self.stations if each.state == "joining"]

    @property
    def joined(self) -> list[Station]:
        return [each for each in self.stations if each.state != "joining"]

    @property
    def ready(self) -> list[Station]:
        return [each for each in self.stations if each.state == "ready"]

    @property
    def idle(self) -> list[Station]:
        return [each for each in self.ready if each.job is None]

    @property
    def busy(self) -> list[Station]:
        return [each for each in self.stations if each.job is not None]

    @property
    def node_count(self) -> int:
        return len({each.place[0] for each in self.joined})

    def pending(self) -> dict[Any, Station]:
        """What is awaited, and from whom."""
        going = [each for each in self.stations if each.reference is not None]
        return {each.reference: each for each in going}

    def why_none(self) -> str:
        if self._left_out:
            return next(iter(self._left_out.values()))
        wanted = "a free GPU" if self._wants_gpus(_nodes()) else "all its CPUs free"
        return f"no node of it has {wanted}"

    def assert_some(self) -> None:
        """Without workers for so long, nothing is to be expected any more."""
        if self.stations:
            self._alone_since = math.inf
            return
        self._alone_since = min(self._alone_since, time.monotonic())
        if time.monotonic() - self._alone_since > _ALONE_S:
            raise UserError("no node of it is left")

    # -- coming ------------------------------------------------------------------------

    def recruit(self) -> None:
        """A worker for every place of every node that has none."""
        if time.monotonic() - self._looked < _RECRUIT_S:
            return
        self._looked = time.monotonic()
        nodes = _nodes()
        gpus = self._wants_gpus(nodes)
        taken = {station.place for station in self.stations}
        shared = Counter(node["NodeManagerAddress"] for node in nodes)
        for node in nodes:
            there = node["Resources"]
            count = int(there.get("GPU", 0)) if gpus else int(there.get("CPU", 0) >= 1)
            for place in ((node["NodeID"], number) for number in range(count)):
                again = self._starts[place] < _STARTS
                if (
                    place not in taken
                    and again
                    and node["NodeID"] not in self._left_out
                ):
                    where = f"node {node['NodeManagerAddress']}"
                    if shared[node["NodeManagerAddress"]] > 1:
                        where += f" ({node['NodeID'][:4]})"
                    self._start(place, where, there, count if gpus else 0)

    def _wants_gpus(self, nodes: list[dict[str, Any]]) -> bool:
        device = self.errand.plan.device
        found = any(node["Resources"].get("GPU", 0) >= 1 for node in nodes)
        return device == "cuda" or (device is None and found)

    def _start(
        self, place: tuple[str, int], where: str, there: Mapping[str, float], gpus: int
    ) -> None:
        cpus = there.get("CPU", 0.0)
        share = max(1, int(cpus / gpus)) if gpus else int(cpus)
        self._starts[place] += 1
        self._number += 1
        remote = ray.remote(Outpost).options(
            num_cpus=min(share, cpus),
            num_gpus=1 if gpus else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place[0], soft=False),
        )
        actor = remote.remote(self.errand, self._number, where)
        station = Station(place, where, actor)
        station.reference = actor.join.remote(cpus, gpus)
        self.stations.append(station)

    def like(
        self, first: Station, environment: Mapping[str, Any], limit_s: float
    ) -> None:
        """The others have to be like this one, which is ready."""
        self.model = {name: environment.get(name) for name in _ALIKE}
        self.limit_s, self._first = limit_s, first.where
        first.state = "ready"
        for station in self.stations:
            if station.state == "joined":
                self._prepare(station)

    def _prepare(self, station: Station) -> None:
        """Reference answers and eager's process, before a trial counts on them."""
        station.state = "preparing"
        station.reference = station.ask("probe", self.limit_s)

    def welcome(self, station: Station, ending: str, value: Any) -> None:
        """After joining and after making ready: one step on, or out."""
        if ending != "done":
            self._leave_out(station, value)
        elif station.state == "joining":
            station.state, station.where = "joined", value
            if self.model is not None:
                self._prepare(station)
        elif differing := self._differing(value["environment"]):
            self._leave_out(station, differing)
        else:
            station.state = "ready"
            self.said.append(f"{station.where} is ready")

    def _differing(self, environment: Mapping[str, Any]) -> str | None:
        for name, value in (self.model or {}).items():
            if environment.get(name) != value:
                there = environment.get(name)
                return f"{name} is {there} there and {value} on {self._first}"
        return None

    # -- going -------------------------------------------------------------------------

    def _leave_out(self, station: Station, why: str) -> None:
        told = f"{station.where} is left out: {why}"
        self._left_out[station.place[0]] = told
        self.said.append(told)
        self._remove(station)

    def lose(self, station: Station, error: Exception) -> None:
        station.ended = _why(station, error)
        self.said.append(f"{station.where} is lost: {station.ended}")
        self._remove(station)

    def _remove(self, station: Station) -> None:
        self.stations.remove(station)
        with contextlib.suppress(Exception):  # where it still runs, it must not
            ray.kill(station.actor)

    def close(self) -> None:
        """Ends all workers; what they started ends with them."""
        for station in list(self.stations):
            self._remove(station)


def _nodes() -> list[dict[str, Any]]:
    """Those alive, the one this machine is on first."""
    own = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda n: (n["NodeID"] != own, n["NodeManagerAddress"]))


def _why(station: Station, error: Exception) -> str:
    """One line of what Ray tells in many."""
    told = str(error)
    if "No module named 'torchproof" in told:
        return "torchproof is not installed there"
    if isinstance(error, OutOfMemoryError) or "memory pressure" in told:
        return "the node ran out of memory"
    if "its node has died" in told or "node was terminated" in told:
        return "the node is gone"
    if isinstance(error, TimeoutError):
        return told
    return "its process ended"
