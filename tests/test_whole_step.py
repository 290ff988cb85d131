"""The benchmark of whole steps: what is measured in which order, and its tables."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from facts import numbers
from forked_children import forked

from torchproof.records.run import Measurement, Run
from torchproof.targets.target import keywords
from torchproof.targets.target import parse as parse_target

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

import whole_step_tables as tables  # noqa: E402

from benchmarks import replays, side_by_side, whole_step  # noqa: E402

TRAINING, INFERENCE = whole_step.STEPS[0], whole_step.STEPS[1]


def arm(strategy: str, step_ms: float | None, **more: Any) -> Measurement:
    judged = {"verdict": "rounding"}
    given: dict[str, Any] = {"numerics": judged, "verdict": "2.00x faster", **more}
    return Measurement(strategy, median_ms=step_ms, **given)


def row(arms: Sequence[Measurement], *more: Sequence[Measurement]) -> tables.Row:
    runs = [
        Run("id", "target", "", environment={}, counts={}, measurements=tuple(each))
        for each in (arms, *more)
    ]
    return tables.Row(TRAINING, tuple(runs))


# -- the schedule ----------------------------------------------------------------------


def test_every_row_has_a_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = [step.name for step in whole_step.STEPS]
    assert len(set(names)) == len(names)
    source = (ROOT / "benchmarks" / "step_targets.py").read_text()
    for step in whole_step.STEPS:
        target = parse_target(step.target)
        assert f"def {target.factory}() -> Target" in source
        assert keywords(target) == set()


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    rows = f"{TRAINING.name},{INFERENCE.name}"
    given = ["--out", str(tmp_path), "--rows", rows]
    (tmp_path / f"{TRAINING.name}.json").write_text("{}")
    (tmp_path / f"{INFERENCE.name}-modes.json").write_text("{}")
    left = whole_step.wanted(whole_step.options_of(given))
    assert [(work.step, work.plate) for work in left] == [
        (INFERENCE, "plain"),
        (TRAINING, "modes"),
    ]
    every = whole_step.wanted(whole_step.options_of([*given, "--again"]))
    assert len(every) == 4


def test_a_group_has_one_plate_and_few_rows() -> None:
    every = [
        whole_step.Work(step, plate)
        for plate in whole_step.PLATES
        for step in whole_step.STEPS
    ]
    found = list(whole_step.groups(every))
    assert [work for group in found for work in group] == every
    assert all(len({work.plate for work in group}) == 1 for group in found)
    assert max(map(len, found)) == whole_step.TOGETHER


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        whole_step.options_of(["--rows", "gpt3"])
    told = capsys.readouterr().err
    assert "gpt3" in told and TRAINING.name in told


def test_slots_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(range(16)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, own: taken.append(own))
    slots = whole_step.Slots(5)
    with slots.rest() as rest:
        rest.submit(int).result()
    assert taken == [{15}]
    taken.clear()
    with slots.pool() as pool:
        together = threading.Barrier(5)  # so that no thread does another's work
        list(pool.map(lambda _: together.wait(60), range(5)))
    assert slots.cores_each == 3 and len(set().union(*taken)) == 15


def test_arms_end_as_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All but CUDA: first calls, verdicts, rounds, memory, and what does not apply."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(side_by_side, "ROUND_S", (0.01, 0.02))
    monkeypatch.setattr(side_by_side, "WARM_UP_S", 0.01)
    step = next(s for s in whole_step.STEPS if s.name == "arrcoc-scorers")
    with forked():
        given = ["--out", str(tmp_path), "--arms", "eager,regional+graph"]
        options = whole_step.options_of([*given, "--slots", "2"])
        whole_step.measure([[whole_step.Work(step, "plain")]], options)
    again = Run.from_json(json.loads((tmp_path / f"{step.name}.json").read_text()))
    eager, graph = again.measurements
    assert eager.median_ms and eager.peak_bytes and eager.verdict == "reference"
    assert len(eager.rounds_ms) == side_by_side.ROUNDS
    assert (graph.verdict, graph.median_ms) == ("skipped", None)
    [note] = graph.notes
    assert "CUDA" in note
    assert again.other["conditions"]["slots"] == 2


# -- the tables ------------------------------------------------------------------------


def test_the_best_of_both_kinds_are_compared() -> None:
    found = row(
        [
            arm("eager", 20.0),
            arm("full:reduce-overhead", 4.0, first_call_s=20.0),
            arm("regional+graph", 3.5, first_call_s=6.0),
            arm("full+graph", 3.0),
        ],
        [arm("eager+graph", 9.0), arm("full:max-autotune", 3.9)],
    )
    told = tables._step(found)
    assert told[1:7] == (
        *("20.0 ms", "3.90 ms (`max-autotune`)", "3.00 ms (`full+graph`)"),
        *("0.77", "0.80", "met"),
    )
    assert tables._start(found)[-3:] == ("0.30", "0.4", "met")


def test_what_is_wrong_or_fell_back_is_not_compared() -> None:
    found = row(
        [
            arm("full:reduce-overhead", 4.0, verdict="wrong"),
            arm("full", 10.0),
            arm("full+graph", 1.0, verdict="fell back", notes=("fell back: x.py:3",)),
        ]
    )
    assert found.mode is not None and found.mode.strategy == "full"
    assert found.graph is None
    assert "x.py:3" in tables._step(found)[-1]


def test_a_goal_that_is_missed_says_what_the_kernels_take() -> None:
    kernels = {"kernel_ms": 3.6}
    missed = [arm("full", 4.0), arm("full+graph", 3.8, kernels=kernels)]
    told = tables._step(row(missed))
    assert told[-2] == "missed"
    assert numbers(told[-1]) == [3.60, 0.90]


def test_memory_and_drift() -> None:
    first = [
        arm("full", 4.0, peak_bytes=2**30),
        arm("full+graph", 3.0, peak_bytes=2**29 * 3),
        arm("eager+graph", 10.0),
    ]
    found = row(first, [arm("eager+graph", 11.0)])
    assert tables._memory(found)[3:6] == ("1.50", "1.1", "missed")
    assert found.drift == pytest.approx(1.1)


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
