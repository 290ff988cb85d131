"""What was not compared with eager has times, and no ratio, rank or verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tune_runs
from bench_runs import bench, row
from forked_workers import backends, measured

from torchproof.measure.comparison.decisions import decision
from torchproof.measure.specs import EAGER, StrategySpec
from torchproof.records import Measurement, Trial, Tuning
from torchproof.report import bench_sections
from torchproof.strategies.strategy import parse

STATEFUL = Path(__file__).parent / "models" / "stateful.py"
SHAPES = ({"batch": 8}, {"batch": 16})
UNVERIFIED: dict[str, Any] = {"numerics": None}
COMPILED, REPLAYED = (
    (StrategySpec(EAGER), StrategySpec(parse(name))) for name in ("full", "full+graph")
)
RATIOS = ("vs_eager", "vs_eager_low", "vs_eager_high", "median_ratio", "break_even")


def swept(
    factory: str, specs: tuple[StrategySpec, ...], device: str = "cpu"
) -> list[Measurement]:
    """The rows of the compiled strategy, by batch size."""
    found = measured(f"{STATEFUL}:{factory}", specs, shapes=SHAPES, device=device)
    rows = [row for row in found.rows if row.strategy != "eager"]
    assert [row.error for row in rows] == [None, None]
    return rows


def has_no_rank(row: Measurement) -> bool:
    return all(getattr(row, name) is None for name in RATIOS)


# -- bench -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "specs"),
    [
        pytest.param("cpu", backends("eager"), marks=pytest.mark.slow),
        *(
            pytest.param("cuda", specs, marks=pytest.mark.gpu)
            for specs in (COMPILED, REPLAYED)
        ),
    ],
)
def test_wrong_outputs_at_a_later_shape_are_found_although_passes_change_state(
    device: str, specs: tuple[StrategySpec, ...]
) -> None:
    first, later = swept("wrong_at_16", specs, device)
    assert first.verification == "verified" and first.vs_eager is not None
    assert (later.verification, later.verdict) == ("wrong", "wrong")
    assert has_no_rank(later)


@pytest.mark.parametrize(
    ("device", "specs"),
    [
        ("cpu", backends("eager")),
        pytest.param("cuda", COMPILED, marks=pytest.mark.gpu),
    ],
)
def test_state_in_tensors_is_restored_before_a_later_shape(
    device: str, specs: tuple[StrategySpec, ...]
) -> None:
    rows = swept("right", specs, device)
    assert [row.verification for row in rows] == ["verified", "verified"]
    assert all(row.vs_eager is not None for row in rows)


def test_state_outside_of_tensors_leaves_a_later_shape_unverified() -> None:
    first, later = swept("counting", backends("eager"))
    assert first.verification == "verified"
    assert (later.verification, later.verdict) == ("unverified", "unverified")
    assert later.numerics and later.numerics["verdict"] is None
    assert later.numerics["why"] and later.median_ms is not None
    assert has_no_rank(later)


@pytest.mark.slow
def test_random_numbers_are_accepted_at_each_shape() -> None:
    rows = swept("dropping", COMPILED)
    verdicts = [(row.numerics or {})["verdict"] for row in rows]
    assert verdicts == ["random", "random"]


# -- records ---------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", [None, {}, {"verdict": None}])
def test_a_measurement_without_numerics_loses_its_ratio(numerics: Any) -> None:
    made = row("full", 0.5, numerics=numerics)
    assert made.verdict == made.verification == "unverified"
    assert has_no_rank(made) and has_no_rank(replace(made, vs_eager=2.0))
    plain = row("full", 0.5).to_json() | {"numerics": numerics}
    saved = Measurement.from_json(plain)
    assert saved.verification == saved.to_json()["verification"] == "unverified"
    assert has_no_rank(saved)


def test_right_outputs_keep_the_ratio_and_eager_is_the_reference() -> None:
    for verdict in ("same", "rounding", "random"):
        made = row("full", 0.5, numerics={"verdict": verdict})
        assert made.verification == "verified" and made.vs_eager == 2.0
    assert row("eager", 1.0, numerics=None).verification == "reference"


def test_a_trial_without_numerics_has_no_rank_and_is_not_chosen() -> None:
    plain = tune_runs.trial("full", 1.0) | {"numerics": None}
    trial = Trial.from_json(plain)
    assert not trial.is_ranked and trial.outcome == "unverified" and trial.why
    assert trial.vs_eager is None and trial.value is None
    eager = tune_runs.trial("eager", 2.0)
    search = {**tune_runs.TUNING, "trials": [eager, plain], "chosen": "full"}
    tuning = Tuning.from_json(search)
    assert tuning.chosen is None and tuning.recipe is None and tuning.why


# -- reports ---------------------------------------------------------------------------

MIXED = bench(
    [row("eager", 1.0), row("full", 0.5, **UNVERIFIED), row("regional", 0.8, seed=1)]
)
SWEPT = bench(
    [
        *(row("eager", 1.0, variant=shape) for shape in SHAPES),
        row("full", 0.5, variant=SHAPES[0]),
        row("full", 0.5, variant=SHAPES[1], **UNVERIFIED),
    ]
)


def test_an_unverified_strategy_is_neither_ranked_nor_recommended() -> None:
    assert [r.strategy for r in bench_sections.ranked(MIXED)] == ["eager", "regional"]
    assert [r.strategy for r in bench_sections.timed(MIXED)][-1] == "full"
    assert decision(MIXED).strategy == "regional"
    alone = bench([row("eager", 1.0), row("full", 0.5, **UNVERIFIED)])
    assert decision(alone).word == "not enough evidence"


def test_a_swept_size_without_comparison_is_marked() -> None:
    [table] = bench_sections.variants(SWEPT)
    column = table.header.index("vs eager")
    assert [cells[column] for cells in table.rows][-1] == "unverified"
    assert decision(SWEPT).word == "not enough evidence"


# -- intervals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repeats", "over", "words"),
    [
        ((12,), "rounds", "single process"),
        ((6, 6), "rounds", "2 processes"),
        ((3, 3, 2, 2, 2), "processes", ""),
    ],
)
def test_an_interval_says_how_many_processes_it_is_of(
    repeats: tuple[int, ...], over: Any, words: str
) -> None:
    full = row("full", 0.5, repeats=repeats, interval_over=over)
    assert full.to_json()["processes"] == len(repeats)
    assert bench_sections.processes(full) == words
    assert row("full", 0.5).processes is None
