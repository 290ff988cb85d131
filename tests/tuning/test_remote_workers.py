"""Which nodes of a cluster may join a search, and with which resources; without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.cli.verbs import main
from torchproof.measure.specs import Plan
from torchproof.records import UserError
from torchproof.targets.target import parse
from torchproof.tuning import cluster
from torchproof.tuning.cluster import remote_worker
from torchproof.tuning.cluster.remote_worker import (
    Place,
    RemoteJob,
    RemoteWorker,
    remote_job,
)

FACTORY = "def make():\n    return None, []\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteJob:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_LOGS", "-inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/here/only")
    monkeypatch.setenv("HF_TOKEN", "secret")
    Path("model.py").write_text(FACTORY)
    return remote_job(Plan(parse("model.py:make"), ()), "0" * 12, shares_caches=True)


class Node(RemoteWorker):
    """Joins without changing anything in this process."""

    def _set_up(self, where: str) -> None: ...


def join(job: RemoteJob) -> str:
    return Node(job, 1, Place("a", 0, "node 10.0.0.2", 2, 0)).join()


def test_node_like_this_machine_joins_in_its_folder(
    job: RemoteJob, tmp_path: Path
) -> None:
    os.chdir("/")
    assert join(job) == "node 10.0.0.2"
    assert Path.cwd() == tmp_path


DIFFERENCES: dict[str, Callable[[RemoteJob], RemoteJob]] = {
    "/no/such/folder": lambda job: replace(job, folder="/no/such/folder"),
    "no file": lambda job: Path("model.py").unlink() or job,
    "differs": lambda job: Path("model.py").write_text("# other") and job,
    "version of torchproof": lambda job: replace(job, package="another"),
}


@pytest.mark.parametrize("reason", DIFFERENCES)
def test_unlike_node_is_refused(job: RemoteJob, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        join(DIFFERENCES[reason](job))


def test_variables_of_torch_are_sent_and_secrets_are_not(job: RemoteJob) -> None:
    assert job.variables["TORCH_LOGS"] == "-inductor"
    assert not {"HF_TOKEN", "TORCHINDUCTOR_CACHE_DIR", "HOME"} & set(job.variables)


def test_workload_needs_no_file(job: RemoteJob) -> None:
    plan = Plan(parse("workload:nanovlm"), ())
    assert remote_job(plan, "0" * 12, shares_caches=True).file is None


def node(name: str, address: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerAddress": address, "Resources": resources}


@pytest.mark.parametrize(
    ("cpus", "gpus", "alone", "count", "claim"),
    [
        (16, 0, False, 1, {"num_cpus": 16, "num_gpus": 0}),
        (64, 8, False, 8, {"num_cpus": 8, "num_gpus": 1}),
        (5, 2, False, 2, {"num_cpus": 2, "num_gpus": 1}),
        (4, 8, False, 8, {"num_cpus": 0.5, "num_gpus": 1}),
        (1, 1, False, 1, {"num_cpus": 1, "num_gpus": 1}),
        (64, 8, True, 1, {"num_cpus": 64, "num_gpus": 1}),
    ],
)
def test_worker_claims_its_share_of_a_node(
    cpus: int, gpus: int, alone: bool, count: int, claim: dict[str, float]
) -> None:
    nodes = [node("a", "10.0.0.1", CPU=cpus, GPU=gpus), node("b", "10.0.0.2", CPU=0)]
    places = remote_worker.places(nodes, on_gpus=gpus > 0, alone=alone)
    assert len(set(places)) == count and {place.node for place in places} == {"a"}
    assert places[0].claim == claim
    assert count * claim["num_cpus"] <= cpus


def test_gpus_are_used_if_there_are_any() -> None:
    nodes = [node("a", "10.0.0.1", CPU=8, GPU=1), node("b", "10.0.0.2", CPU=8)]
    assert remote_worker.wants_gpus(None, nodes)
    assert not remote_worker.wants_gpus(None, nodes[1:])
    assert not remote_worker.wants_gpus("cpu", nodes)
    assert remote_worker.wants_gpus("cuda", nodes[1:])


def test_nodes_of_one_address_have_different_names() -> None:
    nodes = [node("abcdef", "10.0.0.1", CPU=1), node("123456", "10.0.0.1", CPU=1)]
    names = [place.where for place in remote_worker.places(nodes, on_gpus=False)]
    assert names == ["node 10.0.0.1 (abcd)", "node 10.0.0.1 (1234)"]


def test_missing_ray_names_the_extra(
    job: RemoteJob,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    assert main(["tune", "model.py:make", "--ray", "auto", "-q"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("torchproof: error: --ray ")
    assert output.err.endswith("pip install torchproof[ray]\n")
