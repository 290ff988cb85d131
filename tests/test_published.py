"""What is published of step times: verified, of one run, of at least five processes."""

from __future__ import annotations

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

import published_tables as tables  # noqa: E402

from benchmarks import published, replays  # noqa: E402

PROCESSES = (12,) * published.PROCESSES
NOT_COMPARED: dict[str, Any] = {"numerics": None}
TWO_PROCESSES = {"repeats": (30, 30)}


def arm(strategy: str, ms: float, **more: Any) -> Measurement:
    made = bench_runs.row(strategy, ms, eager_ms=4.0, count=sum(PROCESSES))
    given = {"repeats": PROCESSES, "interval_over": "processes", **more}
    return replace(made, **given)


def run(*arms: Measurement, **eager: Any) -> Run:
    return bench_runs.bench([arm("eager", 4.0, **eager), *arms])


def publish(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> None:
    found = [tables.Row(f"step {n}", each) for n, each in enumerate(runs)]
    monkeypatch.setattr(tables, "kept", lambda: found)


def texts() -> list[str]:
    return [tables.measured(), tables.steps(), tables.modes()]


# -- what is left out ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planted", "why"),
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
    monkeypatch: pytest.MonkeyPatch, planted: dict[str, Any], why: tables.Refusal
) -> None:
    bad = arm("full+graph", 0.123, **planted)
    assert tables.refusal(bad) is why
    publish(monkeypatch, run(arm("full", 2.0), bad))
    [row] = tables.rows()
    assert [each.strategy for each in row.arms] == ["eager", "full"]
    assert row.graph is None
    assert not any("0.123" in text for text in texts())
    assert "`full+graph`" in tables.not_published()


def test_a_row_whose_eager_is_not_published_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(monkeypatch, run(arm("full", 0.123), **TWO_PROCESSES))
    assert tables.rows() == []
    assert texts() == [tables.NOTHING] * 3
    assert tables.not_published().count("step 0") == 2


def test_nothing_is_published_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch)
    assert {*texts(), tables.not_published(), tables.commands()} == {tables.NOTHING}


# -- what is shown ---------------------------------------------------------------------


def test_the_ratio_is_to_the_best_mode_of_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arms = [arm("full", 5.0), arm("full:reduce-overhead", 1.0), arm("full+graph", 0.5)]
    publish(monkeypatch, run(*arms), run(arm("full:max-autotune", 0.1)))
    first, second = tables.rows()
    assert first.mode == arms[1] and first.graph == arms[2]
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


def test_what_is_stored_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = [row.name for row in published.ROWS]
    here, before = tmp_path / "here", tmp_path / "before"
    for folder, name in ((here, first), (before, second)):
        folder.mkdir()
        (folder / f"{name}.json").write_text("{}")
    given = ["--out", str(here), "--kept", str(before), "--seconds", "300"]
    given += ["--rows", f"{first},{second},{third}"]
    [left] = published.waiting(published.options_of(given))
    assert left.name == third
    assert len([*published.waiting(published.options_of([*given, "--again"]))]) == 3
    measured: list[str] = []
    monkeypatch.setattr(
        published, "measure", lambda row, *_: measured.append(row.name) or True
    )
    monkeypatch.setattr(sys, "argv", ["published", *given])
    assert published.main() == 0 and measured == [third]
    monkeypatch.setattr(sys, "argv", ["published", *given, "--seconds", "5"])
    assert published.main() == 1 and measured == [third]


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        published.options_of(["--rows", "gpt3"])
    assert "gpt3" in capsys.readouterr().err


# -- replays ---------------------------------------------------------------------------


def test_stale_answers_are_found_and_fresh_ones_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "torchproof")
    fresh = replays.drive(60, "cpu")
    assert [part["stale"] for part in fresh] == [0, 0]
    assert all(part["compared"] for part in fresh)
    blind = replays.drive(60, "cpu", blind=True)
    assert all(part["stale"] for part in blind)
