"""What `loadtest` does with its result: baseline, trace and exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_runs
import load_runs
import pytest

from torchproof import measure
from torchproof.cli import main
from torchproof.records import LoadResult, Run

LINE = ["loadtest", "model.py:make", "--rate", "50", "--slo", "p99=50ms", "-q"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a target; a verb sets a handler for SIGTERM."""
    (tmp_path / "model.py").write_text("def make(): ...")
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


def serves(monkeypatch: pytest.MonkeyPatch, *results: LoadResult) -> list[Any]:
    """Every load test has these results; returns the plans."""
    plans: list[Any] = []

    def run(plan: Any, progress: Any) -> measure.loadtest.LoadTestResult:
        plans.append(plan)
        test = load_runs.load_test(results)
        return measure.loadtest.LoadTestResult(test, bench_runs.ENVIRONMENT)

    monkeypatch.setattr(measure.loadtest, "run_load_test", run)
    return plans


def saved(folder: Path, run: Run) -> str:
    path = folder / "before.json"
    path.write_text(json.dumps(run.to_json()))
    return str(path)


@pytest.mark.parametrize(
    ("results", "compares", "code"),
    [
        ([load_runs.clean()], True, 0),
        ([load_runs.clean(middle_s=0.008)], True, 1),  # worse than the baseline
        ([load_runs.overloaded()], False, 1),  # every strategy misses the objective
        ([load_runs.overloaded(), load_runs.clean("regional")], False, 0),
    ],
)
def test_a_regression_and_a_missed_objective_are_exit_1(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    results: list[LoadResult],
    compares: bool,
    code: int,
) -> None:
    serves(monkeypatch, *results)
    before = saved(folder, load_runs.run([load_runs.clean()]))
    assert main([*LINE, *(["--baseline", before] if compares else [])]) == code


def test_a_baseline_with_another_load_is_refused_before_the_test(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = serves(monkeypatch, load_runs.clean())
    for other in (
        load_runs.run([load_runs.clean()], test={"seed": 3}),
        bench_runs.bench([bench_runs.row("full", 1.0)]),
    ):
        assert main([*LINE, "--baseline", saved(folder, other)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not plans


def test_the_trace_is_a_file_that_did_not_exist(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = serves(monkeypatch, load_runs.clean())
    assert main([*LINE, "--trace", "trace.json"]) == 0
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    capsys.readouterr()
    assert main([*LINE, "--trace", "trace.json"]) == 2
    assert "--trace" in capsys.readouterr().err
    assert len(plans) == 1


def test_a_load_test_is_listed_and_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serves(monkeypatch, load_runs.clean())
    main(LINE)
    shown = capsys.readouterr().out
    assert main(["show"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["show", "--list"]) == 0
    assert "loadtest model.py:make" in capsys.readouterr().out
    (folder_of_run,) = (folder / ".torchproof" / "runs").iterdir()
    assert main(["log", "add", folder_of_run.name]) == 0
    assert "p99 at most 50 ms" in (folder / "experiment-log.md").read_text()
