"""Trials on a Ray cluster of two nodes, with real processes."""

from __future__ import annotations

import importlib
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

from torchproof.records import Run, Trial, UserError, store
from torchproof.records.options import Options
from torchproof.tuning import cluster
from torchproof.tuning.tuner import TuneOptions, tune

HERE = Path(__file__).parent
PLAIN = Options(compile={"backend": "eager"}, quiet=True)
QUICK = TuneOptions(effort="quick", names=("full", "regional"), budget_s=400)

pytest.importorskip("ray", reason="the extra `ray` is not there")
driver_module = importlib.import_module("torchproof.tuning.cluster.driver")
pytestmark = pytest.mark.slow


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


def test_search_on_two_nodes_and_a_lost_cluster_that_keeps_its_trials(
    nodes: Nodes, tmp_path: Path
) -> None:
    before = folders()
    tune_options = replace(QUICK, ray=nodes.address)
    run = tune(f"{HERE / 'planted.py'}:make", PLAIN, tune_options=tune_options)
    names = ("eager", "full", "regional")
    assert outcomes(run) == dict.fromkeys(names, "measured")
    assert run.tuning is not None and run.tuning.chosen == "regional"
    assert_no_process_stays(tmp_path)
    assert folders() <= before

    def lose_all(text: str) -> None:
        if text.startswith("finals: on"):
            for raylet in nodes.raylets.values():
                os.kill(raylet, signal.SIGKILL)

    with pytest.raises(UserError, match=f"--ray {nodes.address}: .* --resume"):
        tune(
            f"{HERE / 'planted.py'}:make",
            PLAIN,
            tune_options=replace(tune_options, names=("regional",)),
            watcher=Progress(lose_all),
        )
    assert_no_process_stays(tmp_path)
    last = max(store.listing(store.RUNS), key=lambda folder: folder.stat().st_mtime)
    saved = store.read(last / "run.json")
    assert saved.ending == "interrupted" and outcomes(saved)["regional"] == "measured"


def test_address_without_a_cluster_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="nothing answers at this address"):
        driver_module.connect("127.0.0.1:9")
    monkeypatch.setattr(cluster, "_CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"--ray {address}: .*\b1 s"):
            tune(
                f"{HERE / 'planted.py'}:make",
                PLAIN,
                tune_options=replace(QUICK, ray=address),
            )
    assert_no_process_stays(tmp_path)
