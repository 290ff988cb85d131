"""Differences planted in a real launch are found with rank, step, line and cause."""

from __future__ import annotations

import pytest
from launched_ranks import line_of, observed, observed_clean, observed_seeds

from torchproof.checking import causes
from torchproof.checking.ranks import CheckedRanks, check_ranks
from torchproof.records import RankDifference


@pytest.fixture(scope="module")
def checked() -> CheckedRanks:
    seeded = observed_seeds()
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
    "partly_reduced": ("collectives", (1,), 0, "def partly_reduced"),
}
# Both ranks recompile the first; the second gets other data; the collective of the
# third is inside the graphs of both.
TWINS = ("together", "other_data", "reduced")


def test_every_difference_is_seen_and_nothing_else(checked: CheckedRanks) -> None:
    found = {
        d.function: (d.kind, d.ranks, d.step, d.line) for d in checked.ranks.differences
    }
    line = line_of("rank_functions.py", "def product")
    assert found.pop("product") == ("cache", (1,), 0, line)
    assert found == {
        function: (kind, ranks, step, line_of("seeded.py", text))
        for function, (kind, ranks, step, text) in SEEDS.items()
    }


# Code, ranks, step: a part of the cause, the file and the text of the line.
FINDINGS = {
    ("RK101", (1,), 1): ("self.scale", "seeded.py", "return x * self.scale"),
    ("RK101", (1,), 2): ("mark_dynamic", "seeded.py", "def marked"),
    ("RK102", (1,), 0): ("x.log()", "seeded.py", "return x.exp()"),
    ("RK103", (0,), 0): ("print(", "seeded.py", "print("),
    ("RK104", (1,), 0): ("cache", "rank_functions.py", "def product"),
    # A batch of one, and a short one.
    ("RK105", (1,), 3): ("expected 4, actual 1", "seeded.py", "def single"),
    ("RK106", (1,), 0): ("only rank 0", "seeded.py", "functional.all_reduce(y"),
    ("RK109", (1,), 6): ("garbage", "seeded.py", "dist.all_reduce"),
}


def test_findings_name_rank_step_line_and_cause(checked: CheckedRanks) -> None:
    between = [m.finding for m in checked.found if m.finding.code.startswith("RK1")]
    found = {
        (f.code, f.ranks, f.step): f
        for f in between
        # A loaded machine makes ranks late.
        if f.code != "RK109" or "garbage" in f.cause
    }
    assert found.keys() == FINDINGS.keys()
    for key, (cause, program, text) in FINDINGS.items():
        assert cause in found[key].cause
        assert found[key].line == line_of(program, text), key
    assert found["RK105", (1,), 3].count == 2


def test_the_other_rank_waits_for_the_recompile(checked: CheckedRanks) -> None:
    recompile = difference(checked, "forward")
    assert recompile.waiting == (0,) and (recompile.waited_s or 0) >= 0.4
    wait = max((w for w in checked.ranks.waits if w.step == 4), key=lambda w: w.seconds)
    assert (wait.late, wait.cause, wait.collective) == (1, "compile", "all_reduce")


def test_what_one_rank_shows_follows_from_its_difference(checked: CheckedRanks) -> None:
    codes = {m.finding.identity: m.finding.code for m in checked.found}
    links = causes.explain(checked.found)
    explained = {codes[i]: codes[e.causes[0]] for i, e in links.items()}
    assert explained["GB104"] == "RK103" and explained["RC202"] == "RK105"


@pytest.mark.parametrize("function", TWINS)
def test_what_both_ranks_do_is_no_difference(
    function: str, checked: CheckedRanks
) -> None:
    [row] = [r for r in checked.ranks.functions if r.function == function]
    assert row.differs == ()
    recompiles = [cell.recompiles for cell in row.ranks]
    assert recompiles == ([1, 1] if function == "together" else [0, 0])


@pytest.mark.slow
def test_ranks_without_a_difference_have_no_finding() -> None:
    joined = observed_clean()
    checked = check_ranks(joined.run, joined.observations)
    codes = {m.finding.code for m in checked.found} - {"RK109"}  # of a loaded machine
    assert not checked.ranks.differences
    assert not [code for code in codes if code.startswith("RK1")]


@pytest.mark.slow
def test_a_rank_without_compiled_code() -> None:
    joined = observed("eager_rank.py")
    checked = check_ranks(joined.run, joined.observations)
    [eager] = [m.finding for m in checked.found if m.finding.code == "RK108"]
    assert eager.ranks == (1,)


@pytest.mark.slow
def test_a_model_compiled_after_sharding() -> None:
    joined = observed("sharded_first.py")
    checked = check_ranks(joined.run, joined.observations)
    [order] = [m.finding for m in checked.found if m.finding.code == "RK107"]
    assert (order.ranks, order.severity) == ((0, 1), "medium")
    assert order.line == line_of("sharded_first.py", "fully_shard(layer)")


@pytest.mark.parametrize("how", ["", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_collective_that_fails_names_what_was_compiled(how: str) -> None:
    joined = observed("stuck.py", *filter(None, [how]))
    checked = check_ranks(joined.run, joined.observations)
    [failed] = [m.finding for m in checked.found if m.finding.code == "RK110"]
    assert (failed.ranks, failed.step, failed.severity) == ((1,), 2, "high")
    # The line is known if a rank waited in it for half a second.
    assert failed.line == line_of("stuck.py", "dist.all_reduce") or how
    assert "compiling forward" in failed.message
    assert "expected 4, actual 3" in failed.cause
    assert ("SIGKILL" in failed.message) == bool(how)
