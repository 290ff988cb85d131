"""What a run decides: keep compiled, stay eager, or not enough evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench_runs import WRONG, bench, row

from torchproof.cli import main
from torchproof.measure.comparison.decisions import decision
from torchproof.records import store
from torchproof.records.run import Measurement

EAGER, REGIONAL, FULL = row("eager", 1.0), row("regional", 0.8), row("full", 0.5)
TAIL = replace(
    row("full", 0.8),
    rounds_ms=tuple((*times[:-1], 3.0) for times in row("full", 0.8).rounds_ms),
    p95_ms=3.0,
)


def at(batch: int, full_ms: float) -> list[Measurement]:
    variant = {"batch": batch}
    return [row("eager", 1.0, variant=variant), row("full", full_ms, variant=variant)]


UNSAFE = {"guards": "skip_guard_eval_unsafe"}
RUNS = {
    "the fastest": [EAGER, REGIONAL, FULL],
    "the fastest is wrong": [EAGER, REGIONAL, row("full", 0.5, **WRONG)],
    "the fastest is not verified": [
        EAGER,
        REGIONAL,
        row("full", 0.5, verdict="not verified"),
    ],
    "the fastest is unsafe": [EAGER, REGIONAL, row("full", 0.5, variant=UNSAFE)],
    "a small gain": [EAGER, row("full", 0.97)],
    "slower": [EAGER, row("full", 1.5)],
    "all wrong": [EAGER, row("full", 0.5, **WRONG)],
    "the slowest calls are slower": [EAGER, TAIL],
    "a wide interval": [EAGER, row("full", 0.95, noise=0.1, advice=("close others",))],
    "no interval": [EAGER, replace(FULL, vs_eager_low=None, vs_eager_high=None)],
    "nothing compiled": [EAGER],
    "no eager": [FULL],
    "faster at both sizes": [*at(4, 0.5), *at(8, 0.6)],
    "faster at one of two sizes": [*at(4, 0.5), *at(8, 1.5)],
}


def test_decisions_are_as_they_were(snapshot: Callable[[str, str], None]) -> None:
    lines = []
    for name, rows in RUNS.items():
        found = decision(bench(rows))
        lines.append(f"{name}: {found.word}, {found.strategy}\n    {found.text}\n")
    snapshot("decisions.txt", "".join(lines))


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
