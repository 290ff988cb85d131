"""Checks that do not come to their end: interrupted, cancelled, timed out, killed.

Some are started with signals ignored, as `nohup` and background jobs start them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PROGRAM, torchproof
from commands import run as run_command
from forked_commands import forked
from waiting import wait_for

from torchproof.cli import main
from torchproof.records import store

SLEEPER = """
import os, subprocess, sys, time
here = os.path.abspath(".")
if "with-torch" in sys.argv:
    import torch
    @torch.compile(backend="eager")
    def step(x):
        return x + x.sum().item()
    for _ in range(3):
        step(torch.ones(2))
    time.sleep(0.3)
    step(torch.ones(2))
if "dies" in sys.argv:
    os.kill(os.getpid(), 9)
if "exits" in sys.argv:
    sys.exit(3)
code = "import time; time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", code, here])
print("asleep in", here, flush=True)
open("asleep", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
child.kill()
"""
IGNORES = """
import os, signal, sys
for name in sys.argv[1].split():
    signal.signal(signal.Signals[name], signal.SIG_IGN)
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def alive(folder: Path) -> Iterator[psutil.Process]:
    """Processes that were started for a target in a folder, however deep."""
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        if process.pid == os.getpid():
            continue
        command = " ".join(process.info["cmdline"] or ())
        mine = str(folder) in command or process.info["cwd"] == str(folder)
        if mine and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield process


def ignoring(names: str, *words: str) -> list[str]:
    """A check as JSON, which begins with these signals ignored."""
    line = [*PROGRAM, "check", "sleeper.py", "--effort", "quick", "--format", "json"]
    more = ["-q", "--fail-on", "never", *words]
    return [sys.executable, "-c", IGNORES, names, *line, *more]


@pytest.mark.parametrize(
    ("ignored", "sent", "arguments", "ending"),
    [
        pytest.param(
            *("", [signal.SIGINT], ["with-torch"], "interrupted"),
            marks=pytest.mark.slow,
        ),
        # Who sends SIGTERM wants the end.
        ("SIGHUP SIGINT SIGTERM", [signal.SIGTERM], [], "interrupted"),
        # Under nohup, and in the background, it goes on.
        ("SIGHUP SIGINT", [signal.SIGHUP, signal.SIGINT], [], "finished"),
    ],
)
def test_signal_saves_what_was_seen_and_leaves_no_process(
    ignored: str, sent: Iterable[int], arguments: list[str], ending: str, folder: Path
) -> None:
    with subprocess.Popen(
        ignoring(ignored, "--", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for((folder / "asleep").exists)
        assert len(list(alive(folder))) >= 2
        for number in sent:
            process.send_signal(number)
        if ending == "finished":
            time.sleep(0.5)
            (folder / "go").touch()
        try:
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()  # a check that has not ended is a failure, not a hang
    run: dict[str, Any] = json.loads(stdout)
    code = {"finished": 0, "interrupted": 130}[ending]
    assert (process.returncode, run["ending"], stderr) == (code, ending, "")
    assert not list(alive(folder))
    assert (folder / store.RUNS / run["id"] / "run.json").is_file()
    if arguments:
        high = [f["code"] for f in run["findings"] if f["severity"] == "high"]
        assert (high, run["counts"]["calls"]) == (["GB101"], 4)
        assert run["parts"]["breaks"]["status"] == "failed"


def test_exit_codes_of_children_are_known_where_sigchld_is_ignored(
    folder: Path,
) -> None:
    done = run_command(ignoring("SIGCHLD", "--", "exits"), folder)
    assert done.returncode == 2 and json.loads(done.stdout)["exit_code"] == 3


def test_timeout_saves_what_was_seen_and_leaves_no_process(folder: Path) -> None:
    line = ["check", "sleeper.py", "--timeout", "3", "--format", "json"]
    done = torchproof(*line, cwd=folder)
    assert done.returncode == 2
    assert f"asleep in {os.path.realpath(folder)}" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchproof: ")
    assert " 3 s" in last and "--timeout" in last
    assert json.loads(done.stdout)["ending"] == "timeout"
    assert not list(alive(folder))


def test_a_script_that_fails_keeps_its_findings(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with forked():
        assert main(["check", "sleeper.py", "-q", "--", "with-torch", "dies"]) == 2
    stdout, stderr = capfd.readouterr()
    assert stderr.startswith("torchproof: error: ")
    assert "SIGKILL" in stderr and stderr.count("\n") == 1
    assert "GB101 high" in stdout and "SIGKILL" in stdout
    main(["show"])
    assert "GB101 high" in capfd.readouterr().out
