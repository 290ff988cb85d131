"""The runner of surveys: rows are stored as they end, and commits are not mixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import git
from waiting import wait_for, wait_for_ends

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import survey  # noqa: E402
from benchmarks.survey import Options, Row, Survey  # noqa: E402


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv(survey.COMMIT, "one")
    return []


def make(calls: list[str]) -> Survey:
    """Three rows; `bad` raises the first time it is measured."""

    def measure(name: str, options: Options) -> Row:
        calls.append(name)
        if name == "bad" and calls.count("bad") == 1:
            raise RuntimeError(f"in {ROOT}/somewhere")
        return {"value": len(name)}

    def failures(found: dict[str, Row]) -> Iterator[str]:
        yield from (
            f"{name} is long" for name, row in found.items() if row["value"] > 4
        )

    rows = ("good", "bad", "longer")
    return Survey(
        "x", lambda _: rows, measure, failures, quick=("good",), is_isolated=False
    )


def stored(path: Path) -> Row:
    document: Row = json.loads(path.read_text())
    return document


def test_stored_rows_are_not_measured_again_and_errors_are(
    calls: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    one = make(calls)
    assert one.main(["good", "bad", "-o", str(path)]) == 1
    assert stored(path)["failures"] == ["bad: RuntimeError: in somewhere"]
    assert one.main(["good", "bad", "-o", str(path)]) == 0
    assert calls == ["good", "bad", "bad"]
    assert one.main(["-o", str(path)]) == 1  # a claim does not hold
    document = stored(path)
    assert list(document["rows"]) == ["good", "bad", "longer"]
    assert document["failures"] == ["longer is long"]
    assert (document["commit"], document["dirty"]) == ("one", False)
    assert document["command"] == "python -m benchmarks.x"


@pytest.mark.parametrize("error", [None, "it ended"])
def test_saved_run_is_stored_unless_it_failed(
    error: str | None, calls: list[str], tmp_path: Path
) -> None:
    run = {"id": "a", "error": error}
    one = Survey(
        "x",
        lambda _: ["row"],
        lambda name, options: dict(run),
        lambda found: (),
        is_isolated=False,
        is_folder=True,
    )
    assert one.main(["-o", str(tmp_path)]) == bool(error)
    assert [json.loads(path.read_text()) for path in tmp_path.iterdir()] == (
        [] if error else [run]
    )


def test_rows_of_two_commits_are_not_mixed(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.json")
    one = make(calls)
    assert one.main(["good", "-o", path]) == 0
    monkeypatch.setenv(survey.COMMIT, "two")
    assert one.main(["good", "-o", path]) == 2
    assert one.main(["--quick", "-o", path]) == 0
    assert stored(Path(path))["commit"] == "two"
    monkeypatch.setenv(survey.COMMIT, "three")
    assert one.main(["good", "--restart", "-o", path]) == 0
    assert calls == ["good"] * 3


def test_no_row_begins_after_the_time(calls: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert make(calls).main(["-o", str(path), "--seconds", "0"]) == 0
    assert calls == [] and stored(path)["rows"] == {}


def test_an_unknown_row_is_refused(calls: list[str]) -> None:
    with pytest.raises(SystemExit):
        make(calls).main(["other"])


PROGRAM = """
import subprocess
import sys
import time

from benchmarks.survey import Survey


def measure(name, options):
    if name == "hangs":
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
    return {"value": 1}


SURVEY = Survey("tiny_survey", lambda _: ("hangs", "ends"), measure, lambda found: ())
if __name__ == "__main__":
    sys.exit(SURVEY.main())
"""


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A survey in processes; `benchmarks` is a package of several folders."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "tiny_survey.py").write_text(PROGRAM)
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tiny_survey", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, survey.COMMIT: "one"},
        text=True,
    )


def test_a_row_that_hangs_ends_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    process = started(tmp_path, "-o", str(path), "--limit", "2")
    assert process.wait(60) == 1
    rows = stored(path)["rows"]
    assert rows["hangs"]["error"] == "not finished after 2 s"
    assert rows["ends"]["value"] == 1


def test_an_end_of_the_survey_ends_what_it_started(tmp_path: Path) -> None:
    process = started(tmp_path, "-o", str(tmp_path / "x.json"))
    whole = psutil.Process(process.pid)
    wait_for(lambda: len(whole.children(recursive=True)) >= 2)
    children = [child.pid for child in whole.children(recursive=True)]
    process.terminate()
    process.wait(60)
    wait_for_ends(children)


def test_a_changed_checkout_is_another_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(survey.COMMIT, raising=False)

    git(tmp_path, "init", "-q")
    code, page = tmp_path / "code.py", tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    code.write_text("one")
    page.write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    clean = survey.commit_of(tmp_path)
    page.write_text("two")  # made of results
    assert survey.commit_of(tmp_path) == clean and not clean[1]
    code.write_text("two")
    changed = survey.commit_of(tmp_path)
    code.write_text("one")
    (tmp_path / "new.py").write_text("three")
    added = survey.commit_of(tmp_path)
    assert len({clean, changed, added}) == 3 and changed[1] and added[1]
    assert survey.commit_of(tmp_path) == added


def test_no_folder_of_a_machine_is_stored() -> None:
    for path in survey.RESULTS.rglob("*.json"):
        text = path.read_text()
        assert "site-packages/" not in text or "load-tests" in path.parts, path
        assert "/work/" not in text and "/home/" not in text, path
