"""The process that talks to Ray: a pool with workers on every node.

It takes calls over its channel and answers each.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import signal
import socket
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from torchproof.measure import WorkerError
from torchproof.process import Channel, Ended, hold, packed, unpacked
from torchproof.records import UserError
from torchproof.tuning.cluster.remote_worker import (
    Node,
    Place,
    RemoteJob,
    RemoteWorker,
    places,
    wants_gpus,
)
from torchproof.tuning.executors import TRIES, Lost, Member, Pool

_RECRUIT_S = 3.0  # between looks for nodes that joined the cluster
_REACH_S = 5.0


class Gone(Exception):
    """The search has ended."""


class Driver(Pool):
    """The other half of `Cluster`: a method for each of its calls."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(lambda text: channel.send({"progress": text}))
        self._channel = channel
        self._number = 0
        self._looked = -math.inf
        self._on_gpus: bool | None = None  # decided once: the first nodes may be lost
        self._starts: Counter[Place] = Counter()

    def ready(self) -> None:
        """Answer that this process has imported Ray."""

    def connect(self, address: str, job: RemoteJob) -> None:
        connect(address)
        self._job = job

    @property
    def node_count(self) -> int:
        return len({each.node for each in self.members if each.eager})

    def check(self) -> None:
        """The search sends nothing during a call, except that it ends."""
        with contextlib.suppress(TimeoutError):
            self._channel.receive(0.0)
            raise Gone

    def recruit(self) -> None:
        """Start a worker in every free place of every node."""
        if time.monotonic() - self._looked < _RECRUIT_S:
            return
        self._looked = time.monotonic()
        nodes = _nodes()
        if self._on_gpus is None:
            self._on_gpus = wants_gpus(self._job.plan.device, nodes)
        occupied = {member.place for member in self.members}
        alone = not self._job.shares_caches
        for place in places(nodes, on_gpus=self._on_gpus, alone=alone):
            left_out = place.node in self.left_out
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

        def call(name: str, *arguments: Any) -> Future[Any]:
            return answered(actor.call.remote(name, *arguments))

        member = Member(place.where, call, functools.partial(_end, actor), place)
        member.node, member.has_joined = place.node, False
        member.running = call("join")
        self.join(member)

    def why_none(self) -> UserError:
        if self.first is not None:
            return UserError("the cluster has no usable node left")
        if self.left_out:
            return super().why_none()
        needed = "a free GPU" if self._on_gpus else "all its CPUs free"
        return UserError(f"no node of the cluster has {needed}")

    def close(self) -> None:
        """Let idle workers clean up, then end all with their child processes."""
        ending = [each.call("close") for each in self.members if not each.job]
        with contextlib.suppress(Exception):  # a node may be gone
            wait_for(ending, _REACH_S)
        for member in self.members:
            member.end()


def answered(reference: Any) -> Future[Any]:
    """The answer of a call; `Lost` if its worker is."""
    answer: Future[Any] = Future()

    def take(future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, RayTaskError):
            error = error.cause
            if not isinstance(error, UserError | WorkerError):
                error = UserError(f"{type(error).__name__}: {error}")
        elif isinstance(error, RayError):
            error = Lost(_why(error))
        if error is None:
            answer.set_result(future.result())
        else:
            answer.set_exception(error)

    reference.future().add_done_callback(take)
    return answer


def _end(actor: Any) -> None:
    with contextlib.suppress(Exception):  # it may still run
        ray.kill(actor)


def _nodes() -> list[Node]:
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
