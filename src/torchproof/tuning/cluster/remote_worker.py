"""A trial worker on a node of a cluster, inside a Ray actor.

Takes a `RemoteJob`, the plan and the environment of the machine that started the
search, and a place on a node with its resources. This module does not import Ray.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from torchproof.measure import Plan
from torchproof.process import parent_death
from torchproof.records import UserError
from torchproof.targets import own_file
from torchproof.tuning.trial_worker import Worker

_COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
# Variables that change the target or its measurement. A node has its own values of all
# others, and secrets stay on this machine.
_STEERING = (
    "TORCH",
    "PYTORCH",
    "TRITON_",
    "OMP_",
    "MKL_",
    "KMP_",
    "CUBLAS_",
    "NVIDIA_TF32",
    "PYTHONPATH",
    "HF_HUB_OFFLINE",
)
_OF_A_MACHINE = ("_CACHE_DIR", "_HOME", "_CACHE", "_TRACE")


@dataclass(frozen=True)
class RemoteJob:
    """What a search sends to every node: the plan and its environment."""

    plan: Plan
    shares_caches: bool
    search: str  # a unique id
    folder: str  # the working directory
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    file: str | None = None  # the file of the target, if it has one
    contents: str = ""  # the hash of that file
    package: str = ""  # the hash of torchproof's own source


def remote_job(plan: Plan, search: str, *, shares_caches: bool) -> RemoteJob:
    """The job with this process's directory and variables, and the target's file."""
    file = own_file(plan.target) if plan.target.kind == "factory" else None
    return RemoteJob(
        plan,
        shares_caches,
        search,
        folder=os.getcwd(),
        variables={k: v for k, v in os.environ.items() if _goes_along(k)},
        file=None if file is None else str(file.absolute()),
        contents="" if file is None else _hashed(file),
        package=_hashed(*_package()),
    )


def _goes_along(name: str) -> bool:
    return name.startswith(_STEERING) and not name.endswith(_OF_A_MACHINE)


def _hashed(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _package() -> list[Path]:
    return sorted(Path(__file__).parents[2].rglob("*.py"))


# -- places ----------------------------------------------------------------------------


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


class Node(TypedDict):
    """A node, as Ray describes it."""

    NodeID: str
    NodeManagerAddress: str
    Resources: Mapping[str, float]


def wants_gpus(device: str | None, nodes: Sequence[Node]) -> bool:
    """Whether trials need GPUs: by the device option, or if any node has one."""
    has_gpu = any(node["Resources"].get("GPU", 0) >= 1 for node in nodes)
    return device == "cuda" or (device is None and has_gpu)


def places(nodes: Sequence[Node], *, on_gpus: bool, alone: bool = False) -> list[Place]:
    """One place per GPU, with its share of the node's CPUs; else one with all CPUs.

    Trials that share a CPU disturb each other. With `alone`, a node is one place, for
    valid first calls.
    """
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


# -- the worker ------------------------------------------------------------------------


class RemoteWorker:
    """One device of a node."""

    def __init__(self, job: RemoteJob, number: int, place: Place) -> None:
        self._job, self._number, self._place = job, number, place
        self._worker: Worker | None = None

    def join(self) -> str:
        """Give this process the directory and variables of the search.

        Returns the name of the device in reports. Raises `UserError` if the node lacks
        a file that the target needs.
        """
        self._match()
        where = self._place.where
        if self._place.gpus > 1:
            where += f", GPU {os.environ.get('CUDA_VISIBLE_DEVICES')}"
        self._set_up(where)
        return where

    def _match(self) -> None:
        job = self._job
        if _hashed(*_package()) != job.package:
            raise UserError(
                "it has another version of torchproof: install the same version"
            )
        try:
            os.chdir(job.folder)
        except OSError:
            raise UserError(f"it has no directory {job.folder}") from None
        if job.file is None:
            return
        file = Path(job.file)
        if not file.is_file():
            raise UserError(f"it has no file {file}")
        if _hashed(file) != job.contents:
            raise UserError(f"its {file} differs from the file on this machine")

    def _set_up(self, where: str) -> None:
        job = self._job
        # A busy worker would outlive its raylet, and keep its GPU memory.
        parent_death.kill_with_parent()
        # Ray limits OpenMP to the worker's share, which would change the target. Keep
        # the limit only if the node itself is a share of a machine.
        if self._place.cpus >= (os.cpu_count() or 1):
            os.environ.pop("OMP_NUM_THREADS", None)
        os.environ.update(job.variables)
        # Ray starts workers with low priority; only some users may raise it again.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._home = Path(tempfile.gettempdir()) / f"torchproof-{job.search}"
        folder = self._home / f"worker-{self._number}"
        folder.mkdir(parents=True)
        self._worker = self._new_worker(folder, where)

    def _new_worker(self, folder: Path, where: str) -> Worker:
        job, plan, gpus = self._job, self._job.plan, self._place.gpus
        if gpus > 1 and _COMPILE_THREADS not in job.variables:
            # Inductor would start a process per core for each GPU.
            share = str(max(1, int(self._place.cpus / gpus)))
            plan = replace(plan, environment={_COMPILE_THREADS: share})
        return Worker(
            plan,
            folder,
            home=self._home,
            shares_caches=job.shares_caches,
            alone=gpus <= 1,
            where=where,
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """Call `join`, `close` or a method of the worker."""
        own = name in ("join", "close")
        return getattr(self if own else self._worker, name)(*arguments)

    def close(self) -> None:
        """End the worker's processes and delete the files of the search on this node.

        The files of a worker that was killed are among them.
        """
        if self._worker is not None:
            self._worker.close()
            shutil.rmtree(self._home, ignore_errors=True)
