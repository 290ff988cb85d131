"""What a run decides: keep compiled, stay eager, or not enough evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_runs import WRONG, bench, row
from facts import missing, numbers

from torchproof.cli import main
from torchproof.measure.comparison.decisions import Decision, decision
from torchproof.records import store
from torchproof.records.run import Measurement


def decided(*rows: Measurement) -> Decision:
    return decision(bench([row("eager", 1.0), *rows]))


def kept(*rows: Measurement) -> str | None:
    """The compiled strategy that is kept."""
    found = decided(*rows)
    return found.strategy if found.word == "keep compiled" else None


def test_the_fastest_sound_strategy_is_kept() -> None:
    regional, full = row("regional", 0.8), row("full", 0.5)
    assert kept(regional, full) == "full"
    text = decided(regional, full).text
    assert "2.00x faster" in text and numbers(text) == [2.00, 1.96, 2.04, 24]
    wrong = row("full", 0.5, **WRONG)
    assert kept(regional, wrong) == "regional"
    assert "1.25x faster" in decided(regional, wrong).text
    unverified = row("full", 0.5, verdict="not verified")
    assert kept(regional, unverified) == "regional"
    unsafe = row("full", 0.5, variant={"guards": "skip_guard_eval_unsafe"})
    assert kept(regional, unsafe) == "regional"


def test_eager_stays_where_nothing_gains_enough() -> None:
    little, slow = decided(row("full", 0.97)), decided(row("full", 1.5))
    wrong = decided(row("full", 0.5, **WRONG))
    assert {found.word for found in (little, slow, wrong)} == {"stay eager"}
    assert missing(little.text, "full", "1.03x faster", "5 percent") == []
    assert numbers(little.text) == [1.03, 1.01, 1.05, 5]
    assert missing(slow.text, "full", "1.50x slower") == []
    assert numbers(slow.text) == [1.50, 1.47, 1.53]
    assert missing(wrong.text, "full", "wrong", WRONG["numerics"]["why"]) == []


def test_eager_stays_where_the_slowest_calls_are_slower() -> None:
    full = row("full", 0.8)
    tail = tuple((*times[:-1], 3.0) for times in full.rounds_ms)
    found = decided(replace(full, rounds_ms=tail, p95_ms=3.0))
    assert found.word == "stay eager"
    assert missing(found.text, "full", "1.25x faster", "3 ms", "1.02 ms") == []


def test_an_interval_that_leaves_both_open_is_not_enough() -> None:
    wide = row("full", 0.95, noise=0.1, advice=("close other programs",))
    bare = row("full", 0.5, vs_eager_low=None, vs_eager_high=None)
    alone = decision(bench([row("full", 0.5)]))
    for found in (decided(wide), decided(bare), decided(), alone):
        assert (found.word, found.strategy) == ("not enough evidence", None)
    text = decided(wide).text
    assert numbers(text) == [1.05, 0.95, 1.16]
    assert missing(text, "full", *wide.advice) == []
    assert "full" in decided(bare).text
    assert "eager" in decided().text and "eager" in alone.text
    assert decided().text != alone.text


def test_under_several_conditions_all_must_agree() -> None:
    def at(batch: int, full_ms: float) -> list[Measurement]:
        variant = {"batch": batch}
        return [
            row("eager", 1.0, variant=variant),
            row("full", full_ms, variant=variant),
        ]

    agreed = decision(bench([*at(4, 0.5), *at(8, 0.6)]))
    assert (agreed.word, agreed.strategy) == ("keep compiled", "full")
    assert "batch 4: full (batch 4) " in agreed.text and "2.00x faster" in agreed.text
    mixed = decision(bench([*at(4, 0.5), *at(8, 1.5)]))
    assert (mixed.word, mixed.strategy) == ("not enough evidence", None)
    text = dict(part.split(": ", 2)[:2] for part in mixed.text.split("; ")[-1:])
    assert text == {"batch 8": "stay eager"}


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
