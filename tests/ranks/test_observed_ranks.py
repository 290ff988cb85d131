"""Ranks started by torch's launcher: each leaves its events, however it ends."""

from pathlib import Path

import pytest
from commands import torchproof
from launched_ranks import line_of, observed, observed_clean, observed_seeds

from torchproof.observe import JoinedRanks
from torchproof.records import Rank, RankEvent


def events(rank: Rank, kind: str, function: str = "") -> list[RankEvent]:
    return [
        each
        for each in rank.events
        if each.kind == kind and each.function.startswith(function)
    ]


@pytest.fixture(scope="module")
def seeded() -> JoinedRanks:
    return observed_seeds()


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
    assert again.seconds and again.file
    assert again.line == line_of("seeded.py", "def forward")
    assert first[0].graph == second[0].graph != again.graph


def test_a_break_on_one_rank_has_its_line(seeded: JoinedRanks) -> None:
    first, second = (events(r, "break") for r in seeded.run.ranks)
    line = line_of("seeded.py", "print(")
    assert [(e.function, e.line, e.step) for e in first] == [("report", line, 0)]
    assert not second


def test_collectives_have_the_same_numbers_on_all_ranks(seeded: JoinedRanks) -> None:
    first, second = (events(r, "collective", "all_reduce") for r in seeded.run.ranks)
    first, second = ([e for e in c if e.members == (0, 1)] for c in (first, second))
    assert [e.nth for e in first] == [e.nth for e in second]
    assert [e.step for e in first] == [e.step for e in second] == [*range(7)]
    for one, other in zip(first, second, strict=True):
        assert one.seconds is not None and other.seconds is not None
        ends = one.start_s + one.seconds, other.start_s + other.seconds
        assert ends[0] == pytest.approx(ends[1])


@pytest.mark.slow
def test_ranks_without_a_difference_compile_the_same() -> None:
    first, second = observed_clean().run.ranks
    assert not events(first, "break") and not events(second, "break")
    compiled = [
        [(e.function, e.nth, e.step, e.graph) for e in events(rank, "compile")]
        for rank in (first, second)
    ]
    assert compiled[0] == compiled[1] and len(compiled[0]) == 12


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_compiles_leaves_its_events() -> None:
    joined = observed("stuck.py", "kill")
    killed = joined.run.ranks[1]
    assert (killed.outcome, killed.exit_code) == ("killed", -9)
    compile = events(killed, "compile")[-1]
    assert compile.seconds is None and compile.function == "forward"
    assert killed.activity and killed.activity.startswith("compiling forward (")
    assert joined.observation.error and "rank 1" in joined.observation.error


def test_a_collective_that_times_out_shows_what_the_other_rank_compiled() -> None:
    waiting, compiling = observed("stuck.py").run.ranks
    assert waiting.outcome == "failed" and waiting.activity == "in all_reduce"
    collective = events(waiting, "collective")[-1]
    assert collective.seconds is None and collective.step == 2
    assert collective.line == line_of("stuck.py", "dist.all_reduce")
    assert compiling.outcome == "killed" and compiling.exit_code is None
    assert compiling.activity and compiling.activity.startswith("compiling forward (")


def test_an_option_that_the_launcher_does_not_know_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    wrong = ("--ranks", "2", "--launcher=--bogus", "-q")
    done = torchproof("check", "train.py", *wrong, cwd=tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("torchproof: error: --launcher: ") and "--bogus" in line
