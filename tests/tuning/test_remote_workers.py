"""What a worker on a node checks and does before it is asked; without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.cli.verbs import main
from torchproof.measure.specs import Plan
from torchproof.records import UserError
from torchproof.targets.target import parse
from torchproof.tuning import cluster
from torchproof.tuning.cluster import folder_cleanup, node_shares
from torchproof.tuning.cluster.node_shares import Place
from torchproof.tuning.cluster.node_timing_lock import NodeTimingLock
from torchproof.tuning.cluster.remote_worker import RemoteJob, RemoteWorker, remote_job

FACTORY = "def make():\n    return None, []\n"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteJob:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_LOGS", "-inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/here/only")
    monkeypatch.setenv("HF_TOKEN", "secret")
    Path("model.py").write_text(FACTORY)
    return remote_job(Plan(parse("model.py:make"), ()), "0" * 12, shares_caches=True)


def match(remote_job: RemoteJob) -> str:
    """How a node would answer, before it changes anything in its process."""

    class Willing(RemoteWorker):
        def _set_up(self, where: str) -> None: ...

    return Willing(remote_job, 1, Place("a", 0, "node 10.0.0.2", 2, 0)).join()


def refusal(remote_job: RemoteJob) -> str:
    with pytest.raises(UserError) as error:
        match(remote_job)
    return str(error.value)


def test_a_node_like_this_machine_joins_in_its_folder(
    given: RemoteJob, tmp_path: Path
) -> None:
    os.chdir("/")
    assert match(given) == "node 10.0.0.2"
    assert Path.cwd() == tmp_path


def test_what_steers_a_target_goes_along_and_nothing_else(given: RemoteJob) -> None:
    assert given.variables["TORCH_LOGS"] == "-inductor"
    assert not {"HF_TOKEN", "TORCHINDUCTOR_CACHE_DIR", "HOME"} & set(given.variables)


def test_a_node_without_the_folder_is_refused(given: RemoteJob) -> None:
    assert "/no/such/folder" in refusal(replace(given, folder="/no/such/folder"))


def test_a_node_without_the_targets_file_is_refused(
    given: RemoteJob, tmp_path: Path
) -> None:
    Path("model.py").unlink()
    assert str(tmp_path / "model.py") in refusal(given)


def test_a_node_with_another_file_is_refused(given: RemoteJob) -> None:
    Path("model.py").write_text(FACTORY + "# another\n")
    assert "model.py" in refusal(given)


def test_a_node_with_another_torchproof_is_refused(given: RemoteJob) -> None:
    assert "torchproof" in refusal(replace(given, package="another"))


def test_a_workload_needs_no_file_of_the_users(given: RemoteJob) -> None:
    plan = Plan(parse("workload:nanovlm"), ())
    assert remote_job(plan, "0" * 12, shares_caches=True).file is None


def node(name: str, address: str, **has: float) -> dict[str, Any]:
    return {"NodeID": name, "NodeManagerAddress": address, "Resources": has}


def test_without_gpus_a_worker_has_a_whole_node() -> None:
    nodes = [node("a", "10.0.0.1", CPU=16), node("b", "10.0.0.2", CPU=0)]
    assert not node_shares.wants_gpus(None, nodes)
    [place] = node_shares.places(nodes, on_gpus=False)
    assert place.claim == {"num_cpus": 16, "num_gpus": 0}
    assert place.where == "node 10.0.0.1"


@pytest.mark.parametrize(
    ("cpus", "gpus", "share"), [(64, 8, 8), (5, 2, 2), (4, 8, 0.5), (1, 1, 1)]
)
def test_with_gpus_a_worker_has_one_and_its_share_of_the_cpus(
    cpus: int, gpus: int, share: float
) -> None:
    nodes = [node("a", "10.0.0.1", CPU=cpus, GPU=gpus), node("b", "10.0.0.2", CPU=8)]
    assert node_shares.wants_gpus(None, nodes) and node_shares.wants_gpus(
        "cuda", nodes[1:]
    )
    assert not node_shares.wants_gpus("cpu", nodes)
    found = node_shares.places(nodes, on_gpus=True)
    assert len(found) == len(set(found)) == gpus
    assert {place.node for place in found} == {"a"}
    assert found[0].claim == {"num_cpus": share, "num_gpus": 1}
    assert gpus * share <= cpus


def test_where_first_calls_count_a_worker_has_its_node_to_itself() -> None:
    nodes = [node("a", "10.0.0.1", CPU=64, GPU=8), node("b", "10.0.0.2", CPU=8)]
    [place] = node_shares.places(nodes, on_gpus=True, alone=True)
    assert place.claim == {"num_cpus": 64, "num_gpus": 1}
    [_, second] = node_shares.places(nodes, on_gpus=False, alone=True)
    assert second.claim == {"num_cpus": 8, "num_gpus": 0}


def test_nodes_of_one_address_have_names_of_their_own() -> None:
    nodes = [node("abcdef", "10.0.0.1", CPU=1), node("123456", "10.0.0.1", CPU=1)]
    names = [place.where for place in node_shares.places(nodes, on_gpus=False)]
    assert names == ["node 10.0.0.1 (abcd)", "node 10.0.0.1 (1234)"]


def test_on_a_node_several_begin_at_once_and_one_is_timed_alone(
    tmp_path: Path,
) -> None:
    """Each with a timing_lock of its own, as in processes of their own."""
    happened: list[str] = []
    both, first_is_in = threading.Barrier(2), threading.Event()

    def begin(timing_lock: NodeTimingLock, *, meets: bool) -> None:
        with timing_lock.beside_others():
            happened.append("begins")
            if meets:
                both.wait(10)  # neither would pass it alone
                first_is_in.set()
                time.sleep(0.3)
            happened.append("begun")

    def take_time(timing_lock: NodeTimingLock) -> None:
        first_is_in.wait(10)
        with timing_lock.alone():
            happened.append("timed")
            time.sleep(0.1)
            happened.append("done")

    def begin_later(timing_lock: NodeTimingLock) -> None:
        first_is_in.wait(10)
        time.sleep(0.1)
        begin(timing_lock, meets=False)

    work = [lambda g: begin(g, meets=True)] * 2 + [take_time, begin_later]
    with ThreadPoolExecutor(4) as pool:
        ended = [pool.submit(each, NodeTimingLock(tmp_path)) for each in work]
    assert all(future.exception() is None for future in ended)
    assert happened == [
        *("begins", "begins", "begun", "begun"),
        *("timed", "done", "begins", "begun"),
    ]


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_the_folder_of_a_worker_ends_with_it(tmp_path: Path) -> None:
    own, other = tmp_path / "worker-1", tmp_path / "worker-2"
    own.mkdir()
    other.mkdir()
    worker = sleeper()
    try:
        command = [sys.executable, folder_cleanup.__file__, str(worker.pid), own]
        subprocess.run(command, check=True)
        time.sleep(0.7)
        assert own.exists()
        worker.kill()  # and nobody has asked yet how it ended
        end = time.monotonic() + 10
        while own.exists() and time.monotonic() < end:
            time.sleep(0.1)
        assert not own.exists() and other.exists()
    finally:
        worker.kill()
        worker.wait()


def test_the_last_worker_removes_what_all_shared(tmp_path: Path) -> None:
    home = tmp_path / "search"
    for name in ("worker-1", "worker-2", "caches"):
        (home / name).mkdir(parents=True)
    folder_cleanup.remove(home / "worker-1")
    assert (home / "caches").exists()
    folder_cleanup.remove(home / "worker-2")
    assert not home.exists()


def test_without_ray_the_extra_is_named(
    given: RemoteJob,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    assert main(["tune", "model.py:make", "--ray", "auto", "-q"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("torchproof: error: --ray ")
    assert told.err.endswith("pip install torchproof[ray]\n")
    assert told.err.count("\n") == 1
