"""What goes wrong while compiling costs a model its speed, and nothing else.

A part of the matrix that benchmarks/reliability.py runs whole: each way to fail once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cells
import pytest
from faults import FAULTS, SITUATIONS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import reliability  # noqa: E402

# How late an answer may be on a machine that is busy with other things as well.
GRACE_S = 20.0

CHOSEN = (
    ("tracing sleeps in C", "other thread"),
    ("child killed by SIGKILL", "training"),
    ("child stopped by SIGSTOP", "wait=False"),
    ("signal handlers of the user", "inference"),
    ("AOTAutograd raises", "recompile, training"),
    ("first run fails, inputs overwritten", "training"),
    ("miscompile, verify 3", "recompile"),
    ("tracing loops, the clock jumps", "inference"),
    ("tracing raises", "wait=False"),
)
LONG = (*CHOSEN[:4], ("process limit reached", "wait=False"))


@pytest.mark.parametrize(
    ("fault", "situation"),
    [
        pytest.param(*cell, marks=[pytest.mark.slow] if cell in LONG else [])
        for cell in dict.fromkeys((*CHOSEN, *LONG))
    ],
)
def test_fault_is_survived(fault: str, situation: str, tmp_path: Path) -> None:
    outcome = cells.run(fault, situation, tmp_path, grace_s=GRACE_S)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.ok, "\n".join(outcome.wrong)


def test_every_chosen_cell_is_in_the_matrix() -> None:
    for fault, situation in (*CHOSEN, *LONG):
        assert situation in FAULTS[fault].situations and situation in SITUATIONS


def test_every_cell_of_a_gpu_has_a_column() -> None:
    found = {situation for _, situation in reliability.all_cells("cuda")}
    assert found == set(reliability.situations("cuda"))
    assert {fault.device for fault in cells.GPU_FAULTS.values()} == {"cuda"}


# -- the harness that keeps results ----------------------------------------------------

OK = cells.Outcome("tracing raises", "inference", (), 1.0)
LATE = cells.Outcome("tracing raises", "training", ("took 9 s",), 9.0)


def kept(path: Path) -> dict[tuple[str, str], dict[str, object]]:
    every = json.loads(path.read_text())["cells"]
    assert [(one["fault"], one["situation"]) for one in every] == (
        reliability.all_cells()
    )
    return {
        (one["fault"], one["situation"]): one
        for one in every
        if one["wrong"] is not None
    }


def test_results_are_kept_as_they_come_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first = reliability.Results(path, "one", restart=False)
    first.keep(OK)
    again = reliability.Results(path, "one", restart=False)
    assert ("tracing raises", "inference") in again
    assert ("tracing raises", "training") not in again
    again.keep(LATE)
    found = kept(path)
    assert {one["commit"] for one in found.values()} == {"one"} and len(found) == 2
    assert found["tracing raises", "training"]["wrong"] == ["took 9 s"]


def test_a_fault_that_cannot_be_made_here_was_not_run(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    results = reliability.Results(path, "one", restart=False)
    results.keep(LATE)
    results.keep(replace(OK, skipped="no other user"))
    assert list(kept(path)) == [("tracing raises", "training")]
    assert reliability.cell(replace(OK, skipped="why")) == "skipped: why"


def test_results_of_two_commits_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    reliability.Results(path, "one", restart=False).keep(OK)
    with pytest.raises(reliability.OtherCommit, match=r"one.*--restart"):
        reliability.Results(path, "two", restart=False)
    reliability.Results(path, "two", restart=True).keep(LATE)
    assert list(kept(path)) == [("tracing raises", "training")]


def test_harness_refuses_another_commit_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.json"
    reliability.Results(path, "one", restart=False).keep(OK)
    assert reliability.main(["--resume", "-o", str(path)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "--restart" in error


def test_a_changed_checkout_is_another_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *identity, *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    code, page = tmp_path / "code.py", tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    code.write_text("one")
    page.write_text("one")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = reliability.commit_of(tmp_path)
    page.write_text("two")  # made of results
    assert reliability.commit_of(tmp_path) == clean
    code.write_text("two")
    changed = reliability.commit_of(tmp_path)
    (tmp_path / "new.py").write_text("three")
    added = reliability.commit_of(tmp_path)
    assert len({clean, changed, added}) == 3 and "-dirty-" in changed
    assert reliability.commit_of(tmp_path) == added


def test_a_fault_that_was_not_reached_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = replace(OK, wrong=(cells.NOT_REACHED,))
    monkeypatch.setattr(cells, "_forked", lambda *names, **options: never)
    outcome = cells.run("tracing raises", "inference", tmp_path, grace_s=2.0)
    assert not outcome.ok and reliability.cell(outcome).startswith("not reached")
