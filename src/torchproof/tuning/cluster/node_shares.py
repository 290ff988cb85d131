"""Divides the nodes of a cluster into places for workers, with their resources.

Takes nodes as Ray lists them. Returns one place per GPU, with its share of the node's
CPUs; without GPUs, one place per node with all its CPUs, since trials that share a CPU
disturb each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """`number` counts the places of a node; `where` names the node in reports."""

    node: str
    number: int
    where: str = field(compare=False)
    cpus: float = field(compare=False)  # of the whole node
    gpus: int = field(compare=False)  # of the node, as far as trials use them

    @property
    def claim(self) -> dict[str, float]:
        """The resources of a worker, as arguments of a Ray actor."""
        if not self.gpus:
            return {"num_cpus": self.cpus, "num_gpus": 0}
        share = self.cpus / self.gpus
        # Ray accepts fractions of a CPU only below 1.
        return {"num_cpus": int(share) if share > 1 else share, "num_gpus": 1}


def wants_gpus(device: str | None, nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether trials need GPUs: by the device option, or if any node has one."""
    has_gpu = any(node["Resources"].get("GPU", 0) >= 1 for node in nodes)
    return device == "cuda" or (device is None and has_gpu)


def places(
    nodes: Sequence[Mapping[str, Any]], *, on_gpus: bool, alone: bool = False
) -> list[Place]:
    """The places of all nodes; with `alone`, one per node, for valid first calls."""
    shared = Counter(node["NodeManagerAddress"] for node in nodes)
    shares = []
    for node in nodes:
        where = f"node {node['NodeManagerAddress']}"
        if shared[node["NodeManagerAddress"]] > 1:
            where += f" ({node['NodeID'][:4]})"
        cpus = int(node["Resources"].get("CPU", 0))
        gpus = int(node["Resources"].get("GPU", 0)) if on_gpus else 0
        gpus = min(1, gpus) if alone else gpus
        count = gpus if on_gpus else min(1, cpus)
        shares += [
            Place(node["NodeID"], number, where, cpus, gpus) for number in range(count)
        ]
    return shares
