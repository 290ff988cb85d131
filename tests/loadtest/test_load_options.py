"""The options of a load test; `test_bad_input` has those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest import served_strategy as strategies
from torchproof.records import LatencyObjective, UserError
from torchproof.records.load_options import read_objective


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("p99=50ms", LatencyObjective(99, 50)),
        ("p99.9 = 0.2s", LatencyObjective(99.9, 200)),
        ("first_token:p90=200ms", LatencyObjective(90, 200, "first_token")),
        ("token:p99=15ms", LatencyObjective(99, 15, "token")),
    ],
)
def test_objectives(text: str, objective: LatencyObjective) -> None:
    assert read_objective(text) == objective


def test_a_number_of_requests_and_a_duration_exclude_each_other() -> None:
    with pytest.raises(UserError, match="--requests and --duration"):
        LoadOptions(rate=10, requests=5, duration_s=1)


# -- strategies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("compile:nowait", "model = torchproof.compile(model, wait=False)"),
        (
            "compile:regional:nowait",
            'model = torchproof.compile(model, strategy="regional", wait=False)',
        ),
        ("full+graph", 'model = torchproof.graph(model, strategy="full")'),
        (
            "regional+graph:nowait",
            'model = torchproof.graph(model, strategy="regional", wait=False)',
        ),
        ("graph:nowait", "model = torchproof.graph(model, wait=False)"),
    ],
)
def test_strategies_of_production_are_the_lines_a_user_writes(
    name: str, last_line: str
) -> None:
    served = strategies.named(name)
    assert served.strategy is None
    assert served.lines.splitlines()[-1] == last_line
    assert served.on_cuda == ("graph" in name)
    assert strategies.ServedStrategy.from_json(served.to_json()) == served


def test_strategies_of_bench_are_those_of_bench() -> None:
    served = strategies.named("full:reduce-overhead", {"dynamic": True})
    assert served.strategy.arguments == {"mode": "reduce-overhead", "dynamic": True}
    assert strategies.named("eager", {"dynamic": True}).strategy.as_is


def test_recipes_and_packs_are_files(tmp_path: Any) -> None:
    recipe = tmp_path / "torchproof.toml"
    recipe.write_text("")
    assert f'recipe="{recipe}"' in strategies.named(f"recipe:{recipe}").lines
    assert "wait=False" in strategies.named(f"recipe:{recipe}:nowait").lines
    assert "strict=True" in strategies.named(f"pack:{tmp_path}").lines
