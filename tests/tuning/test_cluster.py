"""Trials on a Ray cluster of two nodes, with real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import torchproof

from torchproof.records import Run, Trial, UserError
from torchproof.targets.options import Options
from torchproof.tuning.tuner import TuneOptions, tune

HERE = Path(__file__).parent
PLAIN = Options(compile={"backend": "eager"}, quiet=True)
QUICK = TuneOptions(effort="quick", names=("full", "regional"), budget_s=400)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="the extra `ray` is not there"
    ),
]


@dataclass(frozen=True)
class Nodes:
    address: str
    raylets: Mapping[str, int]  # process by node


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    resources = getattr(request, "param", ({"num_cpus": 1}, {"num_cpus": 1}))
    cluster = subprocess.Popen(
        [sys.executable, HERE / "two_nodes.py", json.dumps(resources)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=HERE,  # not where searches are started
        start_new_session=True,
    )
    assert cluster.stdin is not None and cluster.stdout is not None
    try:
        yield Nodes(**json.loads(cluster.stdout.readline()))
    finally:
        family = psutil.Process(cluster.pid).children(recursive=True)
        cluster.stdin.close()
        try:
            cluster.wait(20)
        finally:
            for process in family:
                if process.is_running():
                    process.kill()
            cluster.stdout.close()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Progress:
    """Collects the progress of a search, and may act on it."""

    def __init__(self, act: Callable[[str], None] = lambda text: None) -> None:
        self.lines: list[str] = []
        self._act = act

    def __call__(self, text: str) -> None:
        self.lines.append(text)
        self._act(text)

    def show(self, state: Mapping[str, Any]) -> None: ...

    def __contains__(self, part: str) -> bool:
        return any(part in line for line in self.lines)


def trials(run: Run) -> dict[str, Trial]:
    assert run.tuning is not None
    return {trial.name: trial for trial in run.tuning.trials}


def outcomes(run: Run) -> dict[str, str]:
    return {name: trial.outcome for name, trial in trials(run).items()}


def still_running(folder: Path) -> list[str]:
    """What was started for a search from this folder and is still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.cwd() == str(folder):
                found.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return found


def assert_no_process_stays(folder: Path) -> None:
    end = time.monotonic() + 20
    while left := still_running(folder):
        assert time.monotonic() < end, left
        time.sleep(0.5)


def folders() -> set[Path]:
    """Where workers keep what they compile: named by a search's id of 12 digits."""
    return set(Path("/tmp").glob("torchproof-" + "[0-9a-f]" * 12))


def test_lost_node_does_not_change_the_answer(nodes: Nodes, tmp_path: Path) -> None:
    before = folders()
    seen: list[str] = []

    def lose_the_second(text: str) -> None:
        """As soon as the best candidate is begun on a node that is not the first."""
        name, _, where = text.partition(": on ")
        if where:
            seen.append(where)
        if name == "regional" and where not in ("", seen[0]):
            [lost] = [node for node in nodes.raylets if f"({node[:4]})" in where]
            os.kill(nodes.raylets[lost], signal.SIGKILL)

    progress = Progress(lose_the_second)
    names = ("core:hangs", "core:crashes", "regional")
    run = tune(
        f"{HERE / 'planted.py'}:make_hostile",
        replace(PLAIN, timeout_s=90.0),
        tune_options=replace(QUICK, names=names, ray=nodes.address),
        watcher=progress,
    )
    assert outcomes(run) == {
        "eager": "measured",
        "core:hangs": "timed out",
        "core:crashes": "failed",
        "regional": "measured",
    }
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert run.tuning.executor == f"Ray at {nodes.address}: 2 nodes"
    first, second = dict.fromkeys(seen)
    assert f"{second} is lost" in progress  # Ray may miss the worker before the node
    assert "regional: restarts" in progress
    places = {name: trial.where for name, trial in trials(run).items()}
    assert places["regional"] == first and set(places.values()) <= {"", first, second}
    assert_no_process_stays(tmp_path)
    assert folders() <= before  # also the folder of the lost worker


def test_trial_that_kills_its_worker_is_lost(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # it imports a neighbour
    progress = Progress()
    run = tune(
        f"{HERE / 'deadly.py'}:make",
        PLAIN,
        tune_options=replace(
            QUICK, names=("core:deadly", "regional"), ray=nodes.address
        ),
        watcher=progress,
    )
    assert outcomes(run)["core:deadly"] == "lost"
    assert "lost 3 times" in str(trials(run)["core:deadly"].why)
    assert run.tuning is not None and run.tuning.chosen == "regional"


@pytest.mark.parametrize(
    "nodes",
    [({"num_cpus": 4, "num_gpus": 2}, {"num_cpus": 1, "num_gpus": 2})],
    indirect=True,
)
def test_each_gpu_has_a_worker_and_unlike_nodes_are_left_out(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs that only Ray believes in; where there is one CPU, torch has one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    progress = Progress()
    names = ("core:hangs", "core:crashes", "core:errs", "regional")
    run = tune(
        f"{HERE / 'planted.py'}:make_hostile",
        replace(PLAIN, timeout_s=60.0),
        tune_options=replace(QUICK, names=names, ray=nodes.address),
        watcher=progress,
    )
    assert run.tuning is not None and run.tuning.chosen == "regional"
    places = {trial.where for trial in trials(run).values()}
    assert {place.rpartition(", ")[2] for place in places} == {"GPU 0", "GPU 1"}
    assert len({place.partition(",")[0] for place in places}) == 1
    assert "threads is " in progress


def test_finals_of_a_lost_worker_run_on_another(nodes: Nodes) -> None:
    seen: list[str] = []

    def lose_the_first(text: str) -> None:
        name, _, where = text.partition(": on ")
        if name == "finals":
            seen.append(where)
        if len(seen) == 1 and name == "finals":
            [node] = [node for node in nodes.raylets if f"({node[:4]})" in where]
            for process in psutil.Process(nodes.raylets[node]).children():
                if process.cmdline()[0].startswith("ray::RemoteWorker"):
                    process.kill()

    run = tune(
        f"{HERE / 'planted.py'}:make",
        PLAIN,
        tune_options=replace(QUICK, ray=nodes.address),
        watcher=Progress(lose_the_first),
    )
    assert len(seen) == 2
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert [row.strategy for row in run.measurements] == ["eager", "regional"]
    assert all(row.median_ms for row in run.measurements)


def test_trials_of_a_lost_cluster_are_saved(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as on the nodes

    def lose_all(text: str) -> None:
        if text.startswith("finals: on"):
            for raylet in nodes.raylets.values():
                os.kill(raylet, signal.SIGKILL)

    tune_options = replace(QUICK, ray=nodes.address)
    target = f"{HERE / 'planted.py'}:make"
    with pytest.raises(UserError, match=f"--ray {nodes.address}: .* --resume"):
        tune(target, PLAIN, tune_options=tune_options, watcher=Progress(lose_all))
    assert_no_process_stays(tmp_path)
    run = tune(target, PLAIN, tune_options=replace(tune_options, ray=None, resume=True))
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert run.tuning.resumed == 2 and trials(run)["full"].resumed


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", "Errno"),
        ("local", "HOST:PORT"),
    ],
)
def test_address_without_a_cluster_is_one_line(
    address: str, reason: str, tmp_path: Path
) -> None:
    begin = time.monotonic()
    target = f"{HERE / 'planted.py'}:make"
    done = torchproof("tune", target, "--ray", address, "-q", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"torchproof: error: --ray {address}: ") and reason in line
    assert time.monotonic() - begin < 30


def test_silent_address_is_given_up_in_time(
    tmp_path: Path,
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        target = f"{HERE / 'planted.py'}:make"
        done = torchproof("tune", target, "--ray", address, "-q", cwd=tmp_path)
    assert done.returncode == 2
    assert f"--ray {address}: " in done.stderr and "20 s" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and time.monotonic() - begin < 40
