"""What a run decides: keep compiled, stay eager, or not enough evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_runs import WRONG, bench, row

from torchproof.cli import main
from torchproof.measure.comparison.decisions import decision
from torchproof.records import store
from torchproof.records.run import Measurement


def decided(*rows: Measurement) -> str:
    return str(decision(bench([row("eager", 1.0), *rows])))


def test_the_fastest_sound_strategy_is_kept() -> None:
    regional, full = row("regional", 0.8), row("full", 0.5)
    assert decided(regional, full) == (
        "keep compiled: full is 2.00x faster than eager (1.96 to 2.04);"
        " compiling pays off after 24 steps"
    )
    wrong = row("full", 0.5, **WRONG)
    assert decided(regional, wrong).startswith("keep compiled: regional is 1.25x")
    unverified = row("full", 0.5, verdict="not verified")
    assert decided(regional, unverified).startswith("keep compiled: regional")
    unsafe = row("full", 0.5, variant={"guards": "skip_guard_eval_unsafe"})
    assert decided(regional, unsafe).startswith("keep compiled: regional")


def test_eager_stays_where_nothing_gains_enough() -> None:
    assert decided(row("full", 0.97)) == (
        "stay eager: the best, full, is 1.03x faster than eager (1.01 to 1.05),"
        " less than the 5 percent asked"
    )
    assert decided(row("full", 1.5)).startswith(
        "stay eager: the best, full, is 1.50x slower than eager (1.47 to 1.53)"
    )
    assert decided(row("full", 0.5, **WRONG)) == (
        "stay eager: no compiled strategy can be trusted:"
        " full gives wrong outputs: call 0 differs"
    )


def test_eager_stays_where_the_slowest_calls_are_slower() -> None:
    full = row("full", 0.8)
    tail = tuple((*times[:-1], 3.0) for times in full.rounds_ms)
    assert decided(replace(full, rounds_ms=tail, p95_ms=3.0)) == (
        "stay eager: full is 1.25x faster than eager (1.23 to 1.27), but one call in"
        " twenty takes 3 ms or more, 1.02 ms in eager"
    )


def test_an_interval_that_leaves_both_open_is_not_enough() -> None:
    wide = row("full", 0.95, noise=0.1, notes=("two speeds: close other programs.",))
    assert decided(wide) == (
        "not enough evidence: full is 1.05x faster than eager (0.95 to 1.16): a gain"
        " or none. To decide: two speeds: close other programs"
    )
    bare = row("full", 0.5, vs_eager_low=None, vs_eager_high=None)
    assert decided(bare).startswith("not enough evidence: full")
    assert decided() == "not enough evidence: only eager was measured"
    alone = str(decision(bench([row("full", 0.5)])))
    assert alone == "not enough evidence: eager was not measured"


def test_under_several_conditions_all_must_agree() -> None:
    def at(batch: int, full_ms: float) -> list[Measurement]:
        variant = {"batch": batch}
        return [
            row("eager", 1.0, variant=variant),
            row("full", full_ms, variant=variant),
        ]

    agreed = decision(bench([*at(4, 0.5), *at(8, 0.6)]))
    assert (agreed.word, agreed.strategy) == ("keep compiled", "full")
    assert "batch 4: full (batch 4) is 2.00x faster" in agreed.text
    mixed = decision(bench([*at(4, 0.5), *at(8, 1.5)]))
    assert (mixed.word, mixed.strategy) == ("not enough evidence", None)
    assert "batch 8: stay eager" in mixed.text


# -- the command -----------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, ms in (("before", 0.5), ("after", 0.6)):
        store.save(bench([row("eager", 1.0), row("full", ms)], id=name))
    (tmp_path / "odd.json").write_text("[]")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("before after", 1),
        ("after before", 0),
        ("before before", 0),
        ("before after --threshold speed=30,tail=30", 0),
        ("before odd.json", 2),
        ("before nowhere", 2),
        ("before after --threshold spede=5", 2),
        ("before after --threshold speed=much", 2),
    ],
)
@pytest.mark.usefixtures("saved")
def test_exit_codes(line: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *line.split()]) == code
    shown = capsys.readouterr()
    assert bool(shown.out) == (code < 2)
    assert len(shown.err.splitlines()) == (code == 2)


def test_json_of_a_comparison(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = str(saved / store.RUNS / "after" / "run.json")
    assert main(["compare", "before", after, "--format", "json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"] == "worse" and shown["schema"] == 1
    speed = shown["rows"][1]["metrics"][0]
    assert speed["verdict"] == "1.20x slower" and speed["regression"] is True
    assert shown["decision"]["word"] == "keep compiled"
