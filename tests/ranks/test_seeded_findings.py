"""Differences planted in a real launch are found with rank, step, line and cause."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from launched_ranks import line_of, observed

from torchproof.checking import causes
from torchproof.checking.ranks import CheckedRanks, check_ranks
from torchproof.records import RankDifference


@pytest.fixture(scope="module")
def checked() -> CheckedRanks:
    seeded = observed("seeded.py")
    return check_ranks(seeded.run, seeded.observations)


def difference(checked: CheckedRanks, function: str) -> RankDifference:
    [found] = [d for d in checked.ranks.differences if d.function == function]
    return found


# Function: kind, ranks, step, and the text of its line.
SEEDS = {
    "forward": ("recompile", (1,), 4, "def forward(x)"),
    "report": ("break", (0,), 0, "print("),
    "single": ("recompile", (1,), 3, "def single"),
    "marked": ("recompile", (1,), 2, "def marked"),
    "Scaled.forward": ("recompile", (1,), 1, "def forward(self, x)"),
    "branching": ("graph", (1,), 0, "def branching"),
}


def test_every_difference_is_seen_and_nothing_else(checked: CheckedRanks) -> None:
    found = {
        d.function: (d.kind, d.ranks, d.step, d.line) for d in checked.ranks.differences
    }
    assert found == {
        function: (kind, ranks, step, line_of("seeded.py", text))
        for function, (kind, ranks, step, text) in SEEDS.items()
    }


def test_findings_name_rank_step_and_cause(checked: CheckedRanks) -> None:
    between = [m.finding for m in checked.found if m.finding.code.startswith("RK1")]
    found = sorted((f.code, f.ranks, f.step) for f in between if f.code != "RK109")
    assert found == [
        ("RK101", (1,), 1),  # the attribute
        ("RK101", (1,), 2),  # the mark
        ("RK102", (1,), 0),
        ("RK103", (0,), 0),
        ("RK105", (1,), 3),  # a batch of one, and a short one
    ]
    by_step = {(f.code, f.step): f for f in between}
    assert "self.scale" in by_step["RK101", 1].cause
    assert "mark" in by_step["RK101", 2].cause
    assert by_step["RK105", 3].count == 2
    branch = by_step["RK102", 0]
    assert branch.line == line_of("seeded.py", "return x.exp()")
    assert "x.log()" in branch.cause


def test_the_other_rank_waits_for_the_recompile(checked: CheckedRanks) -> None:
    recompile = difference(checked, "forward")
    assert recompile.waiting == (0,) and (recompile.waited_s or 0) >= 0.4
    [wait] = [w for w in checked.ranks.waits if w.step == 4]
    assert (wait.late, wait.cause, wait.collective) == (1, "compile", "all_reduce")


def test_what_one_rank_shows_follows_from_its_difference(checked: CheckedRanks) -> None:
    codes = {m.finding.identity: m.finding.code for m in checked.found}
    links = causes.explain(checked.found)
    explained = {codes[i]: codes[e.causes[0]] for i, e in links.items()}
    assert explained["GB104"] == "RK103" and explained["RC202"] == "RK105"


def test_a_function_that_both_recompile_is_no_difference(
    checked: CheckedRanks,
) -> None:
    [row] = [r for r in checked.ranks.functions if r.function == "together"]
    assert [cell.recompiles for cell in row.ranks] == [1, 1] and row.differs == ()


@pytest.mark.slow
def test_ranks_without_a_difference_have_no_finding() -> None:
    joined = observed("seeded.py", "clean")
    checked = check_ranks(joined.run, joined.observations)
    codes = {m.finding.code for m in checked.found} - {"RK109"}  # of a loaded machine
    assert not checked.ranks.differences
    assert not [code for code in codes if code.startswith("RK1")]


@pytest.mark.slow
def test_a_cold_cache_on_one_rank(tmp_path: Path) -> None:
    observed("cold_cache.py", str(tmp_path))
    shutil.rmtree(tmp_path / "1")
    joined = observed("cold_cache.py", str(tmp_path), "again")
    checked = check_ranks(joined.run, joined.observations)
    [cold] = [m.finding for m in checked.found if m.finding.code == "RK104"]
    assert (cold.ranks, cold.step) == ((1,), 0)
    assert cold.line == line_of("cold_cache.py", "def forward")
    assert cold.waited_s and not any(m.finding.code == "RK102" for m in checked.found)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "kill"])
def test_a_collective_that_fails_names_what_was_compiled(how: str) -> None:
    joined = observed("stuck.py", *filter(None, [how]))
    checked = check_ranks(joined.run, joined.observations)
    [failed] = [m.finding for m in checked.found if m.finding.code == "RK110"]
    assert (failed.ranks, failed.severity) == ((1,), "high")
    assert "compiling forward" in failed.message
    assert ("SIGKILL" in failed.message) == bool(how)
