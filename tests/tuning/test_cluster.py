"""Trials on a Ray cluster of two nodes, with real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
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

from torchproof.records import Run, Trial, UserError, store
from torchproof.targets.options import Options
from torchproof.tuning.candidates import Eager
from torchproof.tuning.cluster.node_shares import Place
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
def nodes() -> Iterator[Nodes]:
    cluster = subprocess.Popen(
        [sys.executable, HERE / "two_nodes.py"],
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
    commands = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.cwd() == str(folder):
                commands.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return commands


def assert_no_process_stays(folder: Path) -> None:
    end = time.monotonic() + 20
    while left := still_running(folder):
        assert time.monotonic() < end, left
        time.sleep(0.5)


def folders() -> set[Path]:
    """Where workers keep what they compile: named by a search's id of 12 digits."""
    return set(Path("/tmp").glob("torchproof-" + "[0-9a-f]" * 12))


def test_lost_node_does_not_change_the_answer(nodes: Nodes, tmp_path: Path) -> None:
    """The node that is not the head is lost as soon as a trial starts on it.

    Until then the first trial does not end, so that the node gets one: the first, if it
    is ready before the head, otherwise the next.
    """
    before = folders()
    head, other = (f"({node[:4]})" for node in nodes.raylets)
    lost: list[str] = []

    def lose_the_other(text: str) -> None:
        name, _, where = text.partition(": on ")
        if other in where and not lost:
            lost.append(name)
            os.kill([*nodes.raylets.values()][1], signal.SIGKILL)
            (tmp_path / "released").touch()

    progress = Progress(lose_the_other)
    names = ("core:holds", "core:crashes", "regional")
    run = tune(
        f"{HERE / 'planted.py'}:make_holding",
        replace(PLAIN, timeout_s=200.0),
        tune_options=replace(QUICK, names=names, ray=nodes.address),
        watcher=progress,
    )
    assert outcomes(run) == {
        "eager": "measured",
        "core:holds": "measured",
        "core:crashes": "failed",
        "regional": "measured",
    }
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert f"{other} is lost" in progress  # Ray may miss the worker before the node
    assert f"{lost[0]}: restarts" in progress
    places = {trial.where for trial in trials(run).values() if not trial.is_eager}
    assert all(head in place for place in places)
    assert_no_process_stays(tmp_path)
    assert folders() <= before  # also the folder of the lost worker


def test_lost_workers_lose_only_the_trial_that_kills_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial is lost after three workers; the finals begin again on another one."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # it imports a neighbour
    finals: list[str] = []

    def lose_the_first(text: str) -> None:
        name, _, where = text.partition(": on ")
        if name != "finals":
            return
        finals.append(where)
        if len(finals) == 1:
            [node] = [node for node in nodes.raylets if f"({node[:4]})" in where]
            for process in psutil.Process(nodes.raylets[node]).children():
                if process.cmdline()[0].startswith("ray::RemoteWorker"):
                    process.kill()

    run = tune(
        f"{HERE / 'deadly.py'}:make",
        PLAIN,
        tune_options=replace(
            QUICK, names=("core:deadly", "regional"), ray=nodes.address
        ),
        watcher=Progress(lose_the_first),
    )
    assert outcomes(run)["core:deadly"] == "lost"
    assert "lost 3 times" in str(trials(run)["core:deadly"].why)
    assert len(finals) == 2
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert [row.strategy for row in run.measurements] == ["eager", "regional"]
    assert all(row.median_ms for row in run.measurements)


def test_node_unlike_the_first_is_left_out() -> None:
    from torchproof.tuning.cluster.driver import Driver, Remote

    environments = [{"torch": "2.13", "threads": threads} for threads in (2, 2, 1)]
    first, like, unlike = (Eager(Trial("eager"), {}, each) for each in environments)
    driver = Driver(channel=None)  # type: ignore[arg-type]
    assert driver._differing(unlike) is None  # there is no first one yet
    place = Place("a", 0, "node 10.0.0.1", 2, 0)
    driver._first = Remote(place, place.where, actor=None, eager=first)
    assert driver._differing(like) is None
    assert "threads is 1" in str(driver._differing(unlike))


def test_trials_of_a_lost_cluster_are_saved(nodes: Nodes, tmp_path: Path) -> None:
    def lose_all(text: str) -> None:
        if text.startswith("finals: on"):
            for raylet in nodes.raylets.values():
                os.kill(raylet, signal.SIGKILL)

    with pytest.raises(UserError, match=f"--ray {nodes.address}: .* --resume"):
        tune(
            f"{HERE / 'planted.py'}:make",
            PLAIN,
            tune_options=replace(QUICK, names=("regional",), ray=nodes.address),
            watcher=Progress(lose_all),
        )
    assert_no_process_stays(tmp_path)
    [folder] = store.listing(store.RUNS)
    assert outcomes(store.read(folder / "run.json"))["regional"] == "measured"


@pytest.mark.parametrize("silent", [False, True])
def test_address_without_a_cluster_is_one_line(silent: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1] if silent else 9}"
        target = f"{HERE / 'planted.py'}:make"
        done = torchproof("tune", target, "--ray", address, "-q", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"torchproof: error: --ray {address}: ")
    assert ("20 s" if silent else "Errno") in line
