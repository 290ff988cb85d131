"""The survey of models: its rows, its file, and the commands on its page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

import zoo_page  # noqa: E402

from benchmarks import zoo, zoo_rows  # noqa: E402
from benchmarks.result_files import commit_of  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "zoo.md"
NAME = "transformers_patchtst"


def row(*findings: dict[str, object], fix: object = None) -> dict[str, object]:
    check = {"error": None, "findings": list(findings)}
    return {"model": NAME, "check": check, "fix": fix}


def finding(kind: str, severity: str) -> dict[str, object]:
    return {"kind": kind, "severity": severity, "status": "open"}


def test_every_row_of_the_page_names_a_factory() -> None:
    named = re.findall(rf"torchproof check {zoo.TARGET}:(\w+)", PAGE.read_text())
    assert set(named) == set(zoo.FACTORIES)
    kept = json.loads(zoo.RESULTS.read_text())["models"]
    assert [each["model"] for each in kept] == list(zoo.FACTORIES)
    assert all(callable(getattr(zoo, name)) for name in named)


def test_the_survey_has_models_of_each_library() -> None:
    counts = {library: len(names) for library, names in zoo.LIBRARIES.items()}
    assert sum(counts.values()) >= 200 and min(counts.values()) >= 15


def test_no_folder_of_a_machine_is_kept() -> None:
    text = zoo.RESULTS.read_text()
    assert "site-packages" not in text and "/tmp/" not in text and "/home/" not in text


def test_a_place_is_a_link_to_the_version_that_was_checked() -> None:
    versions = {"torch-geometric": "2.8.1", "transformers": "5.17.0", "torch": "2.11+x"}
    place = {"file": "torch_geometric/utils/loop.py", "line": 650}
    assert zoo_page._place(place, {"versions": versions}) == (
        "[loop.py:650](https://github.com/pyg-team/pytorch_geometric/blob/2.8.1"
        "/torch_geometric/utils/loop.py#L650)"
    )
    own = {"file": "benchmarks/zoo_models.py", "line": 3}
    assert zoo_page._place(own, {"versions": versions}) == "zoo_models.py:3"


def test_fix_runs_where_it_may_remove_something() -> None:
    assert zoo.is_to_fix(row(finding("graph_break", "high")))
    assert zoo.is_to_fix(row(finding("recompile", "medium")))
    assert not zoo.is_to_fix(row(finding("recompile", "low")))
    assert not zoo.is_to_fix(row(finding("slowdown", "medium")))
    assert not zoo.is_to_fix(row(finding("graph_break", "high"), fix={}))


def test_rows_of_another_commit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "zoo.json"
    survey = zoo.Survey(kept, "another", restart=False)
    survey.keep(NAME, "check", row()["check"] | {"seconds": 1.0})
    assert zoo.main(["--models", NAME, "--write", "-o", str(kept)]) == 2
    assert "--restart" in capsys.readouterr().err


def test_kept_rows_are_not_run_again_and_time_is_limited(tmp_path: Path) -> None:
    kept = tmp_path / "zoo.json"
    survey = zoo.Survey(kept, commit_of(ROOT), restart=False)
    survey.keep(NAME, "check", row()["check"] | {"seconds": 1.0})
    words = ["--write", "-o", str(kept), "--models"]
    assert zoo.main([*words, NAME]) == 0
    assert zoo.main([*words, "timm_resnet18", "--limit-seconds", "0"]) == 0
    rows = json.loads(kept.read_text())["models"]
    assert [each["model"] for each in rows if each["commit"]] == [NAME]
    assert len(rows) == len(zoo.FACTORIES)


@pytest.mark.slow
def test_an_end_of_the_survey_ends_what_it_started(tmp_path: Path) -> None:
    kept = tmp_path / "zoo.json"
    words = ["--models", NAME, "--write", "-o", str(kept)]
    survey = subprocess.Popen([sys.executable, zoo.__file__, *words], cwd=ROOT)
    process = psutil.Process(survey.pid)
    deadline = time.monotonic() + 60
    while len(started := process.children(recursive=True)) < 2:
        assert time.monotonic() < deadline and survey.poll() is None
        time.sleep(0.1)
    survey.terminate()
    assert survey.wait(60) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive and not kept.exists()


@pytest.mark.slow
def test_a_row_of_the_survey_and_its_command(tmp_path: Path) -> None:
    kept = tmp_path / "zoo.json"
    assert zoo.main(["--models", NAME, "--write", "-o", str(kept)]) == 0
    [found] = [each for each in json.loads(kept.read_text())["models"] if each["check"]]
    assert found["check"]["counts"]["calls"] == 3 and found["check"]["findings"]
    words = found["check"]["command"].split()[1:]
    again = subprocess.run(
        [sys.executable, "-m", "torchproof", *words, "--format", "json", "-q"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert json.loads(again.stdout)["counts"] == found["check"]["counts"]


def test_a_check_that_was_cut_off_is_not_counted() -> None:
    cut = row()
    cut["check"] |= {"parts": {"breaks": {"status": "failed", "why": "timeout"}}}
    assert "timeout" in (zoo_rows.why_not_checked(cut) or "")
    assert zoo_rows.why_not_checked(row()) is None
    assert zoo_rows.why_not_checked({"check": None}) == "not run"
    assert zoo_page.checked([cut, row()]) == [row()]
