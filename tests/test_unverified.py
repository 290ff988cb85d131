"""What was not compared with eager has times, and no ratio, rank or verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tune_runs
from bench_runs import bench, row
from forked_workers import measured

from torchproof.measure.comparison.decisions import decision
from torchproof.measure.specs import EAGER, StrategyJob, StrategySpec
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records import Measurement, Trial, Tuning
from torchproof.report import bench_sections
from torchproof.strategies.strategy import parse, with_arguments
from torchproof.targets.job import Job
from torchproof.targets.target import parse as parse_target

STATEFUL = Path(__file__).parent / "models" / "stateful.py"
SHAPES = ({"batch": 8}, {"batch": 16})
UNVERIFIED: dict[str, Any] = {"numerics": None}
COMPILED, REPLAYED = (
    (StrategySpec(EAGER), StrategySpec(parse(name))) for name in ("full", "full+graph")
)
RATIOS = ("vs_eager", "vs_eager_low", "vs_eager_high", "median_ratio", "break_even")


def compiled_rows(
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


class Swept:
    """The workers of eager and of a strategy at two batch sizes, in this process."""

    def __init__(self, factory: str, folder: Path) -> None:
        target = parse_target(f"{STATEFUL}:{factory}")
        full = with_arguments(parse("full"), backend="eager")
        self.path = str(folder / "outputs.pt")
        self.eager, self.full = (
            StrategyWorker(StrategyJob(strategy, Job(target, device="cpu")))
            for strategy in (EAGER, full)
        )

    def verdicts(self) -> list[dict[str, Any]]:
        """The numerics of the strategy at each size."""
        references = [
            self.eager.make_reference(number, dict(shape))
            for number, shape in enumerate(SHAPES)
        ]
        self.full.prepare(self.path, saves_state=references[1].stateful)
        found = [self.eager.compare_outputs(0, self.path)]
        for _ in range(2):
            self.full._pass()  # the timing
        self.full.reshape(dict(SHAPES[1]), self.path)
        found.append(self.eager.compare_outputs(1, self.path))
        return [dict(each.numerics or {}) for each in found]

    def close(self) -> None:
        for worker in (self.eager, self.full):
            worker.hooks.close()
            worker.compile_stats._hooks.close()


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    with contextlib.ExitStack() as stack:

        def verdicts(factory: str) -> list[dict[str, Any]]:
            torch.compiler.reset()
            made = stack.enter_context(contextlib.closing(Swept(factory, tmp_path)))
            return made.verdicts()

        yield verdicts
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("factory", "verdict"),
    [("right", "same"), ("wrong_at_16", "wrong"), ("counting", None)],
)
def test_a_later_shape_begins_with_the_state_after_one_pass(
    swept: Any, factory: str, verdict: str | None
) -> None:
    """State in tensors is restored; with other state nothing can be compared."""
    first, later = swept(factory)
    assert first["verdict"] == "same" and later["verdict"] == verdict
    assert verdict is not None or "earlier passes" in later["why"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what torch recommends on a GPU is no error
@pytest.mark.parametrize(
    ("factory", "specs", "at_16"),
    [
        ("right", COMPILED, "verified"),
        ("wrong_at_16", COMPILED, "wrong"),
        ("right", REPLAYED, "verified"),
        # A graphed step does not use code that differs from eager.
        ("wrong_at_16", REPLAYED, "verified"),
    ],
)
def test_every_size_is_compared_on_a_gpu(
    factory: str, specs: tuple[StrategySpec, ...], at_16: str
) -> None:
    first, later = compiled_rows(factory, specs, "cuda")
    assert first.verification == "verified" and first.vs_eager is not None
    assert later.verification == at_16
    assert (at_16 == "verified") != has_no_rank(later)


@pytest.mark.slow
def test_random_numbers_are_accepted_at_each_shape() -> None:
    rows = compiled_rows("dropping", COMPILED)
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
