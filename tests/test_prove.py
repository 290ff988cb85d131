"""`make prove`: it continues where it was cut off, and never mixes two sources."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import git
from waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "docs")]

import prove  # noqa: E402
import survey_parts  # noqa: E402

PROGRAM = """
import os, pathlib, time, pytest

def note(name):
    with open("ran.txt", "a") as file:
        file.write(name + "\\n")

def test_quick():
    note("quick")

def test_fails_once():
    note("fails")
    assert pathlib.Path("repaired").exists()

@pytest.mark.skip(reason="needs something")
def test_skipped():
    note("skipped")

def test_hangs():
    note("hangs")
    while not pathlib.Path("repaired").exists():
        time.sleep(0.05)
"""
RUN = """
import sys
sys.path.insert(0, "scripts")
import prove
prove.STEPS = (prove.tests("tests", "all pass", "not gpu", 1),)
sys.exit(prove.main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with four tests, of which one fails and one never ends."""
    for name in ("src", "tests/part", "scripts", "benchmarks/results"):
        (tmp_path / name).mkdir(parents=True)
    for name in prove._SETTINGS:
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text(
        ".torchproof\n__pycache__\nran.txt\nrepaired\n"
    )
    (tmp_path / "tests" / "part" / "test_program.py").write_text(PROGRAM)
    shutil.copy(ROOT / "scripts" / "prove.py", tmp_path / "scripts")
    shutil.copy(ROOT / "benchmarks" / "survey.py", tmp_path / "benchmarks")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "Begin")):
        git(tmp_path, *words)
    return tmp_path


def start(project: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", RUN]
    return subprocess.Popen(command, cwd=project, start_new_session=True)


def finish(project: Path) -> int:
    (project / "repaired").touch()
    with start(project) as process:
        return process.wait(timeout=120)


def ran(project: Path) -> list[str]:
    path = project / "ran.txt"
    return path.read_text().split() if path.exists() else []


def result(project: Path) -> dict[str, Any]:
    text = (project / "benchmarks" / "results" / "prove.json").read_text()
    plain: dict[str, Any] = json.loads(text)
    return plain


@pytest.mark.slow
def test_killed_run_continues_after_the_last_test_that_passed(project: Path) -> None:
    with start(project) as process:
        wait_for(lambda: "hangs" in ran(project))
        os.killpg(process.pid, signal.SIGKILL)
    assert ran(project) == ["quick", "fails", "hangs"]
    assert finish(project) == 0
    assert ran(project) == ["quick", "fails", "hangs", "fails", "hangs"]
    found = result(project)
    assert [found[name] for name in ("passed", "failed", "skipped")] == [3, 0, 1]
    assert found["folders"].keys() == {"tests/part"}
    assert prove.is_green(found)
    # Another source starts anew.
    lines = len(ran(project))
    (project / "src" / "module.py").write_text("x = 1\n")
    assert finish(project) == 0
    assert ran(project)[lines:] == ["quick", "fails", "hangs"]
    assert result(project)["source_digest"] != found["source_digest"]
    assert result(project)["commit"].startswith(f"{found['commit']}-dirty-")


@pytest.mark.slow
def test_changed_test_module_runs_alone_again(project: Path) -> None:
    other = project / "tests" / "part" / "test_other.py"
    other.write_text(PROGRAM.replace('note("', 'note("other '))
    assert finish(project) == 0
    other.write_text(other.read_text().replace('note("other quick', 'note("new quick'))
    lines = len(ran(project))
    assert finish(project) == 0
    assert ran(project)[lines:] == ["new", "quick", "other", "fails", "other", "hangs"]
    assert result(project)["passed"] == 6 and prove.is_green(result(project))


def test_incomplete_or_failed_result_is_not_green() -> None:
    green = {"complete": True, "failures": [], "steps": {"tests": {"passed": True}}}
    assert prove.is_green(green)
    assert not prove.is_green({**green, "complete": False})
    assert not prove.is_green({**green, "failures": ["tests/test_a.py::test_b"]})
    assert not prove.is_green({**green, "steps": {"tests": {"passed": False}}})


def test_every_step_is_pytest_or_a_survey_of_the_project() -> None:
    for first, *others in (step.arguments for step in prove.STEPS):
        name = f"{others[0].replace('.', '/')}.py" if first == "-m" else first
        assert others[0] == "pytest" or (ROOT / name).is_file()


def test_each_machine_has_its_own_line_and_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ran with and without a GPU is not mixed: folders have the same names."""
    counts = {"passed": 1, "failed": 0, "skipped": 0, "seconds": 2}
    made = [
        {
            **counts,
            "commit": "c0ffee",
            "complete": complete,
            "versions": {"torch": "2.13.0"},
            "machine": {"arch": "x86_64", "cores": 2, "gpu": gpu},
            "steps": {step: {"claim": "it holds", "passed": True, "seconds": 1}},
            "folders": {"tests": counts},
        }
        for gpu, step, complete in ((None, "tests", True), ("H200", "gpu-tests", False))
    ]
    monkeypatch.setattr(survey_parts, "proofs", lambda: made)
    cpu, gpu = survey_parts.proved().splitlines()
    assert cpu.startswith("- CPU") and "did not run" not in cpu
    assert gpu.startswith("- H200") and "did not run" in gpu
    _, on_cpu, on_gpu = survey_parts.proof_steps().split("\n\n**")
    assert "| tests |" in on_cpu and "`tests`" in on_cpu and "gpu-tests" not in on_cpu
    assert "| gpu-tests |" in on_gpu and "`tests`" in on_gpu
