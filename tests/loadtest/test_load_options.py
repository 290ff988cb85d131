"""The options of a load test: each wrong value is one line that names its flag."""

from __future__ import annotations

from typing import Any

import pytest

from torchproof.measure.loadtest import LoadOptions, read_duration, read_objective
from torchproof.measure.loadtest import served_strategy as strategies
from torchproof.records import LatencyObjective, UserError

OBJECTIVE = LatencyObjective(99, 50)


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "p99=",
        "p99=soon",
        "p100=1s",
        "p0=1s",
        "p99=0ms",
        "word:p99=1s",
        "p99=1e400s",
        f"p99={'9' * 330}s",
    ],
)
def test_an_objective_that_cannot_be_parsed(text: str) -> None:
    with pytest.raises(UserError, match="--slo"):
        read_objective(text)


def test_durations() -> None:
    seconds = [read_duration(t, "--x") for t in ("5ms", "30s", "2m", "1.5", "100us")]
    assert seconds == pytest.approx([0.005, 30, 120, 1.5, 0.0001])
    with pytest.raises(UserError, match="--x 'long'"):
        read_duration("long", "--x")


@pytest.mark.parametrize(
    ("flag", "settings"),
    [
        ("--rate", {}),
        ("--rate", {"rate": 0}),
        ("--rate", {"rate": float("inf")}),
        ("--rate", {"rate": float("nan")}),
        ("--rate", {"rate": 10, "arrivals": "trace.csv"}),
        ("--arrivals", {"rate": 10, "arrivals": "gamma"}),
        ("--arrivals", {"rate": 10, "arrivals": "gamma:0"}),
        ("--arrivals", {"rate": 10, "arrivals": "gamma:nan"}),
        ("--requests", {"rate": 10, "requests": 0}),
        ("--requests", {"rate": 10, "requests": 5, "duration_s": 1}),
        ("--duration", {"rate": 10, "duration_s": 0}),
        ("--duration", {"rate": 1e6, "duration_s": 60}),
        ("--workers", {"rate": 10, "workers": 0}),
        ("--seed", {"rate": 10, "seed": -1}),
        ("--max-batch", {"rate": 10, "batch_window_s": 0.1}),
        ("--max-batch", {"rate": 10, "max_batch": 8}),
        ("--max-batch", {"rate": 10, "batch_window_s": 0.1, "max_batch": 1}),
        ("--find-rate", {"rate": 10, "find_rate": True}),
        (
            "--find-rate",
            {"rate": 9, "find_rate": True, "objective": LatencyObjective(99.9999, 5)},
        ),
        (
            "--find-rate",
            {"arrivals": "trace.csv", "find_rate": True, "objective": OBJECTIVE},
        ),
    ],
)
def test_wrong_options_name_their_flag(flag: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=flag):
        LoadOptions(**settings)


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


@pytest.mark.parametrize(
    "name",
    [
        "ful",
        "full:nowait",
        "compile:fast",
        "compile:full:regional",
        "graph",
        "recipe:nowhere.toml",
        "pack:nowhere",
        "full+graph:marks",
    ],
)
def test_unknown_strategies(name: str) -> None:
    with pytest.raises(UserError, match="strategy"):
        strategies.named(name)


def test_a_strategy_named_twice() -> None:
    with pytest.raises(UserError, match="twice"):
        strategies.assert_distinct(["eager", "full", "eager"])
