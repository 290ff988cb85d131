"""Ranks of a real launch leave events; differences have rank, step, line and cause."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from commands import python
from forked_commands import forked

from torchproof.checking import causes
from torchproof.checking.ranks import CheckedRanks, check_ranks
from torchproof.cli import main
from torchproof.observe import JoinedRanks, RankOptions, observe_ranks
from torchproof.records import Finding, Rank, RankDifference, RankEvent
from torchproof.targets import Options, parse

PROGRAMS = Path(__file__).parent / "programs"


@functools.cache
def observed(program: str, *arguments: str) -> JoinedRanks:
    """A launch on two ranks, once for all tests."""
    target = parse(str(PROGRAMS / program), arguments)
    options = Options(timeout_s=480, quiet=True)
    with forked():  # the launcher; the ranks are processes of their own
        return observe_ranks(target, options, RankOptions(2), lambda text: None)


@functools.cache
def checked(program: str, *arguments: str) -> CheckedRanks:
    joined = observed(program, *arguments)
    return check_ranks(joined.run, joined.observations)


def line_of(program: str, text: str) -> int:
    lines = (PROGRAMS / program).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def events(rank: Rank, kind: str, function: str = "") -> list[RankEvent]:
    return [
        each
        for each in rank.events
        if each.kind == kind and each.function.startswith(function)
    ]


def findings(checked: CheckedRanks) -> list[Finding]:
    """Those between ranks; on a busy machine any rank may be late."""
    every = [match.finding for match in checked.found]
    return [
        finding
        for finding in every
        if finding.code.startswith("RK1")
        and (finding.code != "RK109" or "garbage" in finding.cause)
    ]


# -- two ranks with a difference in each function --------------------------------------


@pytest.fixture(scope="module")
def seeded() -> JoinedRanks:
    return observed("seeded.py")


def test_both_ranks_finish_and_are_described(seeded: JoinedRanks) -> None:
    assert seeded.ending == "finished" and not seeded.run.notes
    assert [rank.rank for rank in seeded.run.ranks] == [0, 1]
    for rank in seeded.run.ranks:
        assert (rank.outcome, rank.exit_code, rank.steps) == ("finished", 0, 7)
        assert rank.pid and rank.host and rank.local_rank == rank.rank


def test_a_short_batch_on_one_rank_recompiles_there_alone(seeded: JoinedRanks) -> None:
    first, second = (events(r, "compile", "forward") for r in seeded.run.ranks)
    assert [(e.nth, e.step) for e in first] == [(1, 0)]
    assert [(e.nth, e.step) for e in second] == [(1, 0), (2, 4)]
    again = second[1]
    assert again.reason and "expected 4, actual 3" in again.reason
    assert again.sizes == {"x": "3x2"} and again.dynamic == ("x.size(0)",)
    assert again.seconds and again.line == line_of("seeded.py", "def forward")
    assert first[0].graph == second[0].graph != again.graph


def test_collectives_have_the_same_numbers_on_all_ranks(seeded: JoinedRanks) -> None:
    first, second = (events(r, "collective", "all_reduce") for r in seeded.run.ranks)
    first, second = ([e for e in c if e.members == (0, 1)] for c in (first, second))
    assert [e.nth for e in first] == [e.nth for e in second]
    assert [e.step for e in first] == [e.step for e in second] == [*range(7)]
    for one, other in zip(first, second, strict=True):
        assert one.seconds is not None and other.seconds is not None
        ends = one.start_s + one.seconds, other.start_s + other.seconds
        assert ends[0] == pytest.approx(ends[1])


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
# Code, ranks, step: a part of the cause, and the text of the line.
FINDINGS = {
    ("RK101", (1,), 1): ("self.scale", "return x * self.scale"),
    ("RK101", (1,), 2): ("leaves size 0", "def marked"),
    ("RK102", (1,), 0): ("x.log()", "return x.exp()"),
    ("RK103", (0,), 0): ("print(", "print("),
    # A batch of one, and a short one.
    ("RK105", (1,), 3): ("expected 4, actual 1", "def single"),
    ("RK106", (1,), 0): ("only rank 0", "functional.all_reduce(y"),
    ("RK109", (1,), 6): ("garbage", "dist.all_reduce"),
}


def test_every_difference_is_seen_and_nothing_else(seeded: JoinedRanks) -> None:
    found = {
        d.function: (d.kind, d.ranks, d.step, d.line)
        for d in checked("seeded.py").ranks.differences
    }
    assert found == {
        function: (kind, ranks, step, line_of("seeded.py", text))
        for function, (kind, ranks, step, text) in SEEDS.items()
    }
    # Both ranks recompile the first; the second gets other data; the collective of the
    # third is inside the graphs of both.
    rows = {row.function: row for row in checked("seeded.py").ranks.functions}
    for function, recompiles in {"together": 1, "other_data": 0, "reduced": 0}.items():
        assert rows[function].differs == ()
        assert {cell.recompiles for cell in rows[function].ranks} == {recompiles}


def test_findings_name_rank_step_line_and_cause(seeded: JoinedRanks) -> None:
    found = {(f.code, f.ranks, f.step): f for f in findings(checked("seeded.py"))}
    assert found.keys() == FINDINGS.keys()
    for key, (cause, text) in FINDINGS.items():
        assert cause in found[key].cause
        assert found[key].line == line_of("seeded.py", text), key
    assert found["RK105", (1,), 3].count == 2


def test_a_difference_explains_waits_and_findings_of_its_rank(
    seeded: JoinedRanks,
) -> None:
    result = checked("seeded.py")
    recompile: RankDifference
    [recompile] = [d for d in result.ranks.differences if d.function == "forward"]
    assert recompile.waiting == (0,) and (recompile.waited_s or 0) >= 0.4
    wait = max((w for w in result.ranks.waits if w.step == 4), key=lambda w: w.seconds)
    assert (wait.late, wait.cause, wait.collective) == (1, "compile", "all_reduce")
    codes = {m.finding.identity: m.finding.code for m in result.found}
    links = causes.explain(result.found)
    explained = {codes[i]: codes[e.causes[0]] for i, e in links.items()}
    assert explained["GB104"] == "RK103" and explained["RC202"] == "RK105"


# -- other launches --------------------------------------------------------------------


@pytest.mark.slow
def test_a_rank_with_an_empty_cache_beside_a_rank_with_a_full_one(
    tmp_path: Path,
) -> None:
    # In a process of its own: settings that tests change here would change the keys.
    program = "import rank_functions, torch; rank_functions.product(torch.ones(4, 4))"
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "0"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",  # as the launcher sets it: it is part of the keys
    }
    done = python(program, cwd=PROGRAMS, variables=variables)
    assert done.returncode == 0, done.stderr
    # Nothing else differs between these ranks.
    [found] = findings(checked("seeded.py", "clean", "cached", str(tmp_path)))
    assert (found.code, found.ranks) == ("RK104", (1,))
    assert found.line == line_of("rank_functions.py", "def product")


@pytest.mark.slow
def test_a_model_compiled_after_sharding() -> None:
    [order] = [f for f in findings(checked("sharded_first.py")) if f.code == "RK107"]
    assert (order.ranks, order.severity) == ((0, 1), "medium")
    assert order.line == line_of("sharded_first.py", "fully_shard(layer)")


@pytest.mark.slow
def test_a_collective_that_times_out_names_what_the_other_rank_compiled() -> None:
    waiting, compiling = observed("stuck.py").run.ranks
    assert (waiting.outcome, waiting.activity) == ("failed", "in all_reduce")
    collective = events(waiting, "collective")[-1]
    assert collective.seconds is None and collective.step == 2
    assert (compiling.outcome, compiling.exit_code) == ("killed", None)
    assert compiling.activity and compiling.activity.startswith("compiling forward (")
    [failed] = [f for f in findings(checked("stuck.py")) if f.code == "RK110"]
    assert (failed.ranks, failed.step, failed.severity) == ((1,), 2, "high")
    assert failed.line == line_of("stuck.py", "dist.all_reduce")
    assert "expected 4, actual 3" in failed.cause


def test_an_option_that_the_launcher_does_not_know_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    wrong = ("--ranks", "2", "--launcher=--bogus", "-q")
    with forked():
        assert main(["check", "train.py", *wrong]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("torchproof: error: --launcher: ") and "--bogus" in line
