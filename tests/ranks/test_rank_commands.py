"""`check` on several ranks, as commands: what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from commands import PROGRAM, on_ranks, torchproof

from torchproof.cli import verbs
from torchproof.process import tree

PROGRAMS = Path(__file__).parent / "programs"
SEEDED = str(PROGRAMS / "seeded.py")


def test_ranks_inside_a_launch_are_refused(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = answer("check", SEEDED, "--ranks", "2")
    assert (code, err.count("\n")) == (2, 1)


def test_several_machines_are_left_to_torchs_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def become(program: str, words: list[str]) -> None:
        started.append(words)
        raise SystemExit(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", become)
    launcher = "--nnodes=2 --rdzv-endpoint host:29500"
    flags = ["--ranks", "8", "--launcher", launcher, "-q"]
    with pytest.raises(SystemExit):
        verbs.main(["check", SEEDED, *flags, "--", "--ranks", "3"])
    [words] = started
    assert words[1:3] == ["-m", "torch.distributed.run"]
    assert "--nproc-per-node=8" in words and "--nnodes=2" in words
    own = words[words.index("torchproof") + 1 :]
    assert own == ["check", SEEDED, "-q", "--", "--ranks", "3"]


@pytest.mark.slow
def test_ranks_of_an_existing_launch_end_with_one_report_and_exit_code(
    tmp_path: Path,
) -> None:
    check = ["-m", "torchproof", "check", SEEDED, "--format", "json"]
    check += ["--fail-on", "low", "--", str(tmp_path / "caches")]
    done = on_ranks(*check, cwd=tmp_path)
    found = json.loads(done.stdout)  # of rank 0 alone
    assert [rank["outcome"] for rank in found["ranks"]["ranks"]] == ["finished"] * 2
    assert "RK105" in {finding["code"] for finding in found["findings"]}
    assert done.returncode == 1
    assert len(list((tmp_path / ".torchproof" / "runs").iterdir())) == 1
    assert not list((tmp_path / ".torchproof" / "ranks").iterdir())


@pytest.mark.slow
def test_the_model_of_a_factory_is_wrapped_on_each_rank(tmp_path: Path) -> None:
    target = f"{PROGRAMS}/rank_model.py:make"
    flags = ["--ranks", "2", "--train", "--compile", "backend=eager", "-q"]
    flags += ["--wrap", "fsdp2"]  # instead of ddp, which the file asks for
    done = torchproof("check", target, *flags, "--format", "json", cwd=tmp_path)
    checked = json.loads(done.stdout)
    assert "RK105" in {finding["code"] for finding in checked["findings"]}
    assert not {"RK107", "NC803"} & {finding["code"] for finding in checked["findings"]}
    wrapped = {
        event["function"]
        for rank in checked["ranks"]["ranks"]
        for event in rank["events"]
        if event["kind"] == "wrap"
    }
    assert wrapped == {"fully_shard"}


@pytest.mark.slow
def test_a_cancelled_check_keeps_what_was_observed_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    command = [*PROGRAM, "check", str(PROGRAMS / "stuck.py"), "--ranks", "2", "-q"]
    with subprocess.Popen(command, cwd=tmp_path, text=True) as process:
        until = time.monotonic() + 120
        while len(tree(process.pid)) < 6 and time.monotonic() < until:
            time.sleep(0.2)  # the launcher, two supervisors, two ranks
        started = tree(process.pid)
        process.send_signal(signal.SIGTERM)  # background jobs ignore SIGINT
        assert process.wait(60) == 130
    assert len(started) >= 6 and not [pid for pid in started if tree(pid)]
    [saved] = (tmp_path / ".torchproof" / "runs").glob("*/run.json")
    checked = json.loads(saved.read_text(encoding="utf-8"))
    assert checked["ending"] == "interrupted" and checked["ranks"]["world_size"] == 2
