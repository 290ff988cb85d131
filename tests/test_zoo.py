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


def row(
    *findings: dict[str, object], fix: object = None, recompiles: int = 0
) -> dict[str, object]:
    counts = {"graph_breaks": 0, "skipped_frames": 0, "recompiles": recompiles}
    check = {"error": None, "counts": counts, "findings": list(findings)}
    return {"model": NAME, "check": check, "fix": fix}


def finding(kind: str, severity: str) -> dict[str, object]:
    return {"kind": kind, "severity": severity, "status": "open", "code": kind}


def fixed(*left: str, uncovered: int = 0) -> dict[str, object]:
    breaks = {"before": 1, "uncovered": uncovered, "after": 1}
    none = {"before": 0, "uncovered": 0, "after": 0}
    kinds = [{"kind": kind} for kind in left]
    return {"error": None, "breaks": breaks, "recompiles": none, "left": kinds}


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
    generated = {"file": "torch_geometric.nn.conv.gin_conv_propagate_a1.py", "line": 9}
    assert (
        zoo_page._place(generated, {"versions": versions})
        == "code that torch_geometric generates"
    )


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


def test_breaks_of_fix_are_counted_as_those_of_the_check() -> None:
    found = [finding("graph_break", "high"), finding("compile_error", "high")]
    kept = row(*found, fix=fixed("compile_error", "recompile"))
    assert zoo_page._removed(kept) == "1 of 2 breaks"
    kept = row(*found, fix=fixed("compile_error", "graph_break", uncovered=1))
    assert zoo_page._removed(kept) == "1 of 3 breaks"
    assert zoo_page._removed_of([kept]) == "1 of 3 in 1 model"
    for each in zoo_page.checked(json.loads(zoo.RESULTS.read_text())["models"]):
        if zoo_rows.is_fixed(each):  # a run of its own, which found the same
            before = zoo_rows.findings(each, "graph_break", "skipped_frame")
            assert each["fix"]["breaks"]["before"] == len(before), each["model"]
            assert 0 <= zoo_rows.breaks_left(each) <= zoo_rows.breaks_found(each)


def test_a_library_that_fix_did_not_run_on_is_told_from_one_without_breaks() -> None:
    broken = finding("graph_break", "high")
    whole, left, cured = row(), row(broken), row(broken, fix=fixed())
    stopped = row(broken, fix=fixed() | {"error": "it took longer"})
    assert zoo_page._removed_of([whole]) == "-"
    assert zoo_page._removed_of([whole, left]) == "not run"
    assert zoo_page._removed_of([whole, stopped]) == "not run"
    assert zoo_page._removed_of([cured, left, stopped]) == (
        "1 of 1 in 1 model, not run on 2"
    )
    header, counts = "one graph with fixes, at least", zoo_page._counts([cured, left])
    assert header in zoo_page.totals() and counts[-1] == "1 (50%)"


def test_a_constant_size_counts_only_if_the_model_recompiled_again() -> None:
    constant, again = finding("specialization", "low"), finding("recompile", "medium")
    once = row(constant, finding("recompile", "low"), recompiles=1)
    assert zoo_page._recompiles(once) == "1, then it settles"
    assert zoo_page._counts([once])[5] == "0"
    twice = row(constant, finding("recompile", "low"), recompiles=2)
    assert zoo_page._recompiles(twice) == "2 (specialization)"
    assert zoo_page._counts([twice])[5] == "1"
    assert zoo_page._recompiles(row(again, recompiles=1)) == "1 (recompile)"


def test_on_purpose_is_explained_where_it_is_shown() -> None:
    every = {"models": [row(finding("graph_break", "high"))]}
    every["torchvision_operators_declared"] = False
    assert zoo_page._limits(every) == ""
    every["models"][0]["check"]["findings"][0]["status"] = "intentional"
    assert "On purpose" in zoo_page._limits(every)
