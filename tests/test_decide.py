"""docs/decide.md: its tables are the measurements, its links and strategies exist."""

from __future__ import annotations

import functools
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import bench_runs
import pytest

from torchproof.records.run import Measurement, Run
from torchproof.strategies.strategy import parse

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import limitations_page  # noqa: E402
import strategy_tables  # noqa: E402

PAGES = [ROOT / "docs" / "decide.md", ROOT / "docs" / "reference" / "limitations.md"]


def run(*rows: Measurement) -> Run:
    return bench_runs.bench([bench_runs.row("eager", 4.0), *rows])


def cells(table: str, first: str) -> list[str]:
    """The row whose first cell is this one."""
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return next(line for line in lines if line[0] == first)


FAILED = replace(bench_runs.row("full:max-autotune", 1.0), median_ms=None)
FAILED = replace(FAILED, verdict="failed", error="no answer within 9 s")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[strategy_tables.Step]:
    """Two steps: in the first all was measured, in the second one strategy."""
    full, graph = bench_runs.row("full", 2.0), bench_runs.row("full+graph", 0.5)
    overhead = bench_runs.row("full:reduce-overhead", 1.0)
    made = [
        strategy_tables.Step("first", (run(full, overhead), run(graph, FAILED))),
        strategy_tables.Step("second", (run(bench_runs.row("full", 1.0)),)),
    ]
    monkeypatch.setattr(strategy_tables, "on_gpu", lambda: made)
    monkeypatch.setattr(strategy_tables, "elsewhere", list)
    return made


def test_a_mode_is_told_over_all_steps(steps: list[strategy_tables.Step]) -> None:
    shown = cells(strategy_tables.modes(), "`full`")
    gains = sorted(arm.vs_eager for step in steps for arm in step.arms("full"))
    assert shown[2] == "2"
    assert f"({gains[0]:.2f}x to {gains[1]:.2f}x)" in shown[3]


def test_the_shortest_step_counts_where_both_kinds_were_measured(
    steps: list[strategy_tables.Step],
) -> None:
    table = strategy_tables.modes()
    assert " of 1 |" in table.partition("\n")[0]
    assert cells(table, "`full+graph`")[-1] == "1"
    assert cells(table, "`full`")[-1] == "0"


@pytest.mark.usefixtures("steps")
def test_what_was_not_measured_is_a_dash() -> None:
    assert cells(strategy_tables.modes(), "`regional`")[2:] == ["0", "-", "-", "-"]
    assert cells(strategy_tables.each_on_gpu(), "second")[3:] == ["-", "-", "-"]


@pytest.mark.usefixtures("steps")
def test_what_failed_has_no_number_and_a_reason() -> None:
    assert "failed" in cells(strategy_tables.each_on_gpu(), "first")
    assert cells(strategy_tables.without_result(), "first")[1:] == [
        "`full:max-autotune`",
        FAILED.error,
    ]
    assert re.search(
        r"\b1 [^0-9]+$", cells(strategy_tables.modes(), "`full:max-autotune`")[2]
    )


def test_one_that_can_be_believed_goes_before_one_that_failed() -> None:
    good = bench_runs.row("full:max-autotune", 1.0)
    step = strategy_tables.Step("both", (run(FAILED), run(good)))
    assert step.arm("full:max-autotune") == good


@functools.cache
def measured_steps() -> list[strategy_tables.Step]:
    return strategy_tables.on_gpu()


def median(way: str, field: str) -> float:
    found = [arm for step in measured_steps() if (arm := step.sound(way)) is not None]
    return statistics.median(getattr(arm, field) for arm in found)


def test_what_the_page_concludes_is_in_the_measurements() -> None:
    measured = [
        w for w in strategy_tables.WAYS if any(s.sound(w) for s in measured_steps())
    ]
    starts = {way: median(way, "first_call_s") for way in measured}
    assert min(starts, key=lambda way: starts[way]) == "eager+graph"
    assert max(starts, key=lambda way: starts[way]) == "full:max-autotune"
    assert starts["regional+graph"] < starts["full+graph"]
    gains = {way: median(way, "vs_eager") for way in measured}
    assert 0.8 * gains["full+graph"] < gains["regional+graph"]
    assert gains["full"] < gains["eager+graph"]


@pytest.mark.parametrize("way", strategy_tables.WAYS)
def test_every_strategy_of_the_table_exists(way: str) -> None:
    assert parse(way).name == way


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_lead_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([\w.]*)#([^)]+)\)", page.read_text())
    assert links
    for name, anchor in links:
        text = (page.parent / name if name else page).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        assert anchor in {limitations_page._anchor(heading) for heading in headings}, (
            anchor
        )


def test_codes_of_the_page_exist() -> None:
    from torchproof.checking.rules import RULES

    known = {rule.code for rule in RULES}
    named = set(re.findall(r"\b[A-Z]{2}\d{3}\b", PAGES[0].read_text()))
    assert named and named <= known
