"""Checks that do not come to their end: interrupted, cancelled, timed out, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_commands
import psutil
import pytest
from commands import PROGRAM, torchproof

from torchproof.records import store

SLEEPER = """
import os, subprocess, sys, time
here = os.path.abspath(".")
if sys.argv[1:] == ["with-torch"]:
    import torch
    @torch.compile(backend="eager")
    def step(x):
        return x + x.sum().item()
    for _ in range(3):
        step(torch.ones(2))
    time.sleep(0.3)
    step(torch.ones(2))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)", here])
print("asleep in", here, flush=True)
open("asleep", "w").close()
time.sleep(99)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("endings")
    (root / "sleeper.py").write_text(SLEEPER)
    return root


def _end_with(number: signal.Signals, folder: Path, *arguments: str) -> tuple[int, Any]:
    """Ends a check of the sleeper once it sleeps: the exit code, and the run."""
    marker = folder / "asleep"
    marker.unlink(missing_ok=True)
    line = [*PROGRAM, "check", "sleeper.py", "--format", "json", "-q", "--", *arguments]
    with subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not marker.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        assert len(list(_alive(folder))) >= 2
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert stderr == ""
    return process.returncode, json.loads(stdout)


def _alive(folder: Path) -> Iterator[psutil.Process]:
    """Processes that were started for a target in a folder, however deep."""
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        command = " ".join(process.info["cmdline"] or ())
        mine = str(folder) in command or process.info["cwd"] == str(folder)
        if mine and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield process


def test_ctrl_c_saves_what_was_seen_and_leaves_no_process(folder: Path) -> None:
    code, run = _end_with(signal.SIGINT, folder, "with-torch")
    assert code == 130 and run["ending"] == "interrupted"
    assert [f["code"] for f in run["findings"] if f["severity"] == "high"] == ["GB101"]
    assert run["counts"]["calls"] == 4
    assert run["parts"]["breaks"]["status"] == "failed"
    assert (folder / store.RUNS / run["id"] / "run.json").is_file()
    assert not list(_alive(folder))


def test_a_cancelled_job_ends_as_an_interrupted_one(folder: Path) -> None:
    code, run = _end_with(signal.SIGTERM, folder)
    assert code == 130 and run["ending"] == "interrupted"
    assert not list(_alive(folder))


def test_timeout_saves_what_was_seen_and_leaves_no_process(folder: Path) -> None:
    line = ["check", "sleeper.py", "--timeout", "1.5", "--format", "json"]
    done = torchproof(*line, cwd=folder)
    assert done.returncode == 2
    assert f"asleep in {os.path.realpath(folder)}" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchproof: ")
    assert "1.5 s" in last and "--timeout" in last
    assert json.loads(done.stdout)["ending"] == "timeout"
    assert not list(_alive(folder))


def test_a_script_that_fails_keeps_its_findings(tmp_path: Path) -> None:
    program = SLEEPER.split("subprocess.Popen(")[0] + "os.kill(os.getpid(), 9)\n"
    (tmp_path / "dies.py").write_text(program)
    check = ("check", "dies.py", "-q", "--", "with-torch")
    done = forked_commands.torchproof(*check, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("torchproof: error: ")
    assert "SIGKILL" in done.stderr and done.stderr.count("\n") == 1
    assert "GB101 high" in done.stdout and "SIGKILL" in done.stdout
    assert "GB101 high" in forked_commands.torchproof("show", cwd=tmp_path).stdout
