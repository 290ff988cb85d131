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
    has = getattr(request, "param", ({"num_cpus": 1}, {"num_cpus": 1}))
    cluster = subprocess.Popen(
        [sys.executable, HERE / "two_nodes.py", json.dumps(has)],
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
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Heard:
    """Keeps what is said of a search, and may act on it."""

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


def assert_nothing_stays(folder: Path, search: set[Path]) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        left = [*still_running(folder), *map(str, folders() - search)]
        if not left:
            return
        time.sleep(0.5)
    raise AssertionError(left)


def folders() -> set[Path]:
    """Where workers keep what they compile: named by a search's id of 12 digits."""
    return set(Path("/tmp").glob("torchproof-" + "[0-9a-f]" * 12))


def test_a_search_ends_with_the_same_answer_though_a_node_is_lost(
    nodes: Nodes, tmp_path: Path
) -> None:
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

    heard = Heard(lose_the_second)
    names = ("core:hangs", "core:crashes", "core:errs", "regional")
    run = tune(
        f"{HERE / 'planted.py'}:make_hostile",
        replace(PLAIN, timeout_s=60.0),
        tune_options=replace(QUICK, names=names, ray=nodes.address),
        watcher=heard,
    )
    assert outcomes(run) == {
        "eager": "measured",
        "core:hangs": "timed out",
        "core:crashes": "failed",
        "core:errs": "wrong",
        "regional": "measured",
    }
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert run.tuning.executor == f"Ray at {nodes.address}: 2 nodes"
    first, second = dict.fromkeys(seen)
    assert f"{second} is lost" in heard  # Ray may miss the worker before the node
    assert "regional: restarts" in heard
    places = {name: trial.where for name, trial in trials(run).items()}
    assert places["core:hangs"] == places["regional"] == first
    assert places["core:crashes"] == places["core:errs"] == second
    assert_nothing_stays(tmp_path, before)


def test_a_cluster_gives_the_answer_of_one_machine(
    nodes: Nodes, tmp_path: Path
) -> None:
    done = torchproof(
        "tune",
        f"{HERE / 'planted.py'}:make",
        *("--strategies", "full,regional", "--compile", "backend=eager"),
        *("--effort", "quick", "--ray", nodes.address, "--format", "json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    tuning = json.loads(done.stdout)["tuning"]
    assert tuning["chosen"] == "regional"
    assert tuning["executor"].startswith(f"Ray at {nodes.address}: ")
    assert "raylet" not in done.stderr and "Traceback" not in done.stderr


def test_a_trial_that_ends_its_worker_each_time_is_lost_and_the_search_goes_on(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # it imports a neighbour
    heard = Heard()
    run = tune(
        f"{HERE / 'deadly.py'}:make",
        PLAIN,
        tune_options=replace(
            QUICK, names=("core:deadly", "regional"), ray=nodes.address
        ),
        watcher=heard,
    )
    assert outcomes(run)["core:deadly"] == "lost"
    assert "lost 3 times" in str(trials(run)["core:deadly"].why)
    assert run.tuning is not None and run.tuning.chosen == "regional"


@pytest.mark.parametrize(
    "nodes",
    [({"num_cpus": 4, "num_gpus": 2}, {"num_cpus": 1, "num_gpus": 2})],
    indirect=True,
)
def test_each_gpu_has_a_worker_and_a_node_unlike_the_first_is_left_out(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs that only Ray believes in; where there is one CPU, torch has one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    heard = Heard()
    names = ("core:hangs", "core:crashes", "core:errs", "regional")
    run = tune(
        f"{HERE / 'planted.py'}:make_hostile",
        replace(PLAIN, timeout_s=60.0),
        tune_options=replace(QUICK, names=names, ray=nodes.address),
        watcher=heard,
    )
    assert run.tuning is not None and run.tuning.chosen == "regional"
    places = {trial.where for trial in trials(run).values()}
    assert {place.rpartition(", ")[2] for place in places} == {"GPU 0", "GPU 1"}
    assert len({place.partition(",")[0] for place in places}) == 1
    assert "threads is " in heard


def test_finals_whose_worker_is_lost_are_held_again_by_another(nodes: Nodes) -> None:
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
        watcher=Heard(lose_the_first),
    )
    assert len(seen) == 2
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert [row.strategy for row in run.measurements] == ["eager", "regional"]
    assert all(row.median_ms for row in run.measurements)


def test_a_cluster_that_is_lost_as_a_whole_leaves_what_there_is(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as on the nodes

    def lose_all(text: str) -> None:
        if text.startswith("finals: on"):
            for raylet in nodes.raylets.values():
                os.kill(raylet, signal.SIGKILL)

    before = folders()
    asked = replace(QUICK, ray=nodes.address)
    target = f"{HERE / 'planted.py'}:make"
    with pytest.raises(UserError, match=f"--ray {nodes.address}: .* --resume"):
        tune(target, PLAIN, tune_options=asked, watcher=Heard(lose_all))
    assert_nothing_stays(tmp_path, before)
    run = tune(target, PLAIN, tune_options=replace(asked, ray=None, resume=True))
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert run.tuning.resumed == 2 and trials(run)["full"].resumed


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:9", "Errno"),
        ("no-such-host.invalid:6379", "Errno"),
        ("nonsense", "Invalid address"),  # Ray's own words
        ("local", "HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_one_line(
    address: str, told: str, tmp_path: Path
) -> None:
    begin = time.monotonic()
    target = f"{HERE / 'planted.py'}:make"
    done = torchproof("tune", target, "--ray", address, "-q", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"torchproof: error: --ray {address}: ") and told in line
    assert time.monotonic() - begin < 30


def test_something_else_than_ray_at_the_address_is_given_up_in_time(
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
