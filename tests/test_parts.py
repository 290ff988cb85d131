"""The parts of `check` that measure, on a target whose measurements are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forked_commands import forked

from torchproof import api
from torchproof.checking import measured_parts
from torchproof.checking.measured_parts import PartsMeasurer
from torchproof.records import stats, store
from torchproof.records.options import Options
from torchproof.records.run import Measurement, Run
from torchproof.report import render
from torchproof.targets.target import parse

TARGET = Path(__file__).parent / "models" / "examined.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every part; the real thing, but for how long it samples."""
    options = Options(compile={"backend": "aot_eager"}, quiet=True)
    with pytest.MonkeyPatch.context() as patch, forked():
        patch.chdir(tmp_path_factory.mktemp("runs"))
        patch.setattr(measured_parts, "_SECONDS", 0.2)
        patch.setattr(stats, "ROUNDS", 4)
        made = api.check(f"{TARGET}:make", options, effort="full")
        return store.load(made.id)


def test_parts_are_done_or_say_why_not(run: Run) -> None:
    statuses = {name: part.status for name, part in run.parts.items()}
    assert statuses["breaks"] in {"passed", "found"}  # an intended break is not open
    assert statuses["baseline"] in {"passed", "found"}
    assert statuses["batch"] in {"passed", "found"} and statuses["latency"] == "passed"
    assert statuses["sequence"] == "skipped"
    assert "'sequence'" in run.parts["sequence"].why
    assert statuses["guards"] in {"passed", "found"}


def test_what_was_measured_is_in_the_run(run: Run) -> None:
    eager, compiled, *others = run.measurements
    assert (eager.strategy, compiled.strategy) == ("eager", "full")
    assert compiled.median_ms and compiled.first_call_s
    assert compiled.numerics and compiled.numerics["verdict"] in {"same", "rounding"}
    assert [(row.strategy, dict(row.variant)) for row in others] == [("regional", {})]
    assert run.parts["breaks"].seconds and run.parts["baseline"].seconds


def test_a_break_has_its_measured_cost(run: Run) -> None:
    [found] = [f for f in run.findings if f.kind == "graph_break"]
    assert found.line == 24 and found.status == "intentional"
    assert found.cost_us is not None and 0 < found.cost_us < 1e6


def test_other_batches_that_compile_again_are_found(run: Run) -> None:
    [found] = [f for f in run.findings if f.code == "SP531"]
    assert found.kind == "recompile" and "4 values of batch" in found.message
    assert [line.split(":")[0] for line in found.evidence] == ["4", "8", "6", "1"]


@pytest.mark.parametrize(
    ("numbers", "skipped"),
    [({"first_call_s": None}, "first call"), ({}, "compiling")],
)
def test_latency_needs_a_first_call_of_the_whole(
    numbers: Mapping[str, Any], skipped: str
) -> None:
    examined = PartsMeasurer(parse(f"{TARGET}:make"), Options(), print)
    row = {"median_ms": 1.0, "first_call_s": 2.0, **numbers}
    examined.collected.rows = [Measurement("as-written", **row)]
    part = examined.run(["latency"]).parts["latency"]
    assert part.status == "skipped" and skipped in part.why


def test_a_script_is_not_measured(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('no torch here')\n")
    options = Options(quiet=True)
    run = api.check(str(script), options, save_in=tmp_path / "runs")
    assert run.parts["baseline"].status == "skipped"
    why = run.parts["baseline"].why
    assert "adds nothing to quick" in why
    assert why.endswith(f"torchproof bench {script}")
    shown = " ".join(render(run, "text").split())
    assert shown.count("adds nothing to quick") == 1
    assert f"torchproof bench {script}: baseline, batch, sequence, latency" in shown
