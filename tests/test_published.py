"""What is published of step times: verified, of one run, of at least five processes."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_runs
import pytest

from torchproof.records.run import Measurement, Run
from torchproof.strategies.strategy import parse
from torchproof.targets.target import keywords
from torchproof.targets.target import parse as parse_target

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

import run_parts as tables  # noqa: E402

from benchmarks import published, replays  # noqa: E402

PROCESSES = (12,) * published.PROCESSES
NOT_COMPARED: dict[str, Any] = {"numerics": None}
TWO_PROCESSES = {"repeats": (30, 30)}


def row(strategy: str, ms: float, **more: Any) -> Measurement:
    made = bench_runs.row(strategy, ms, eager_ms=4.0, count=sum(PROCESSES))
    given = {"repeats": PROCESSES, "interval_over": "processes", **more}
    return replace(made, **given)


def run(*rows: Measurement, **eager: Any) -> Run:
    return bench_runs.bench([row("eager", 4.0, **eager), *rows])


def publish(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> None:
    found = [tables.Step(f"step {n}", each) for n, each in enumerate(runs)]
    monkeypatch.setattr(tables, "stored", lambda: found)


def texts() -> list[str]:
    return [tables.measured(), tables.steps(), tables.modes()]


# -- what is left out ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defect", "why"),
    [
        (NOT_COMPARED, tables.Refusal.NOT_VERIFIED),
        ({"numerics": {"verdict": None, "why": "x"}}, tables.Refusal.NOT_VERIFIED),
        (TWO_PROCESSES, tables.Refusal.FEW_PROCESSES),
        ({"vs_eager_low": None}, tables.Refusal.NO_INTERVAL),
        ({"interval_over": "rounds"}, tables.Refusal.NO_INTERVAL),
        (bench_runs.WRONG, tables.Refusal.NOT_RANKED),
        ({"verdict": "fell back"}, tables.Refusal.NOT_RANKED),
    ],
)
def test_what_was_not_verified_is_not_published(
    monkeypatch: pytest.MonkeyPatch, defect: dict[str, Any], why: tables.Refusal
) -> None:
    bad = row("full+graph", 0.123, **defect)
    assert tables.refusal(bad) is why
    publish(monkeypatch, run(row("full", 2.0), bad))
    [step] = tables.sound()
    assert [each.strategy for each in step.rows] == ["eager", "full"]
    assert step.graph is None
    assert not any("0.123" in text for text in texts())
    assert "`full+graph`" in tables.not_published()


def test_a_row_whose_eager_is_not_published_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(monkeypatch, run(row("full", 0.123), **TWO_PROCESSES))
    assert tables.sound() == []
    assert texts() == [tables.UNPUBLISHED] * 3
    assert tables.not_published().count("step 0") == 2


def test_nothing_is_published_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch)
    assert {*texts(), tables.commands()} == {tables.UNPUBLISHED}


# -- what is shown ---------------------------------------------------------------------


def test_the_ratio_is_to_the_best_mode_of_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row("full", 5.0), row("full:reduce-overhead", 1.0), row("full+graph", 0.5)]
    publish(monkeypatch, run(*rows), run(row("full:max-autotune", 0.1)))
    first, second = tables.sound()
    assert first.mode == rows[1] and first.graph == rows[2]
    assert second.graph is None
    cells = tables.measured().splitlines()[2].strip("| ").split(" | ")
    assert cells[4].startswith("0.500 ms") and cells[5].startswith("8.00x (")
    assert cells[6].startswith("2.0") and "(" in cells[6]
    assert "0.80x" in cells[2], "a loss is shown"


# -- what is measured ------------------------------------------------------------------


def test_every_row_is_one_bench_of_five_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    names = [row.name for row in published.ROWS]
    assert len(set(names)) == len(names)
    source = (ROOT / published._TARGETS).read_text()
    for row in published.ROWS:
        target = parse_target(row.command[1])
        assert row.command[0] == "bench" and "--repeats 5" in " ".join(row.command)
        assert [parse(name).name for name in row.strategies] == [*row.strategies]
        if not row.target:
            assert f"def {target.factory}() -> Target" in source
            assert keywords(target) == set()


# -- replays ---------------------------------------------------------------------------


def test_stale_answers_are_found_and_fresh_ones_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "torchproof")
    options = argparse.Namespace(device="cpu", replays=60, blind=False)
    blind = argparse.Namespace(device="cpu", replays=60, blind=True)
    for name in ("inference", "training"):
        fresh = replays.measure(name, options)
        assert fresh["stale"] == 0 and fresh["compared"]
        assert replays.measure(name, blind)["stale"]
