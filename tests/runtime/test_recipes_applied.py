"""torchproof.compile with a recipe: followed as it was measured, or eager and told."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import recipe_nets
import torch
from recipe_nets import ROWS, Net, calls, followed, parts, recipe_for
from torch import nn
from torch._dynamo.testing import CompileCounter

import torchproof
from torchproof.strategies.plan import Plan
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.strategy import Strategy, parse
from torchproof.torch_private import subgraphs


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.compiler.reset()


# -- followed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "replaced"),
    [
        ("full", [""]),
        pytest.param("full:dynamic", [""], marks=pytest.mark.slow),
        pytest.param("full:marks", [""], marks=pytest.mark.slow),
        ("regional", ["", "blocks.0", "blocks.1", "blocks.2"]),
        pytest.param(
            "regional:marks",
            ["", "blocks.0", "blocks.1", "blocks.2"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "nested",
            ["", "blocks.0", "blocks.1", "blocks.2"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "nested:marks",
            ["", "blocks.0", "blocks.1", "blocks.2"],
            marks=pytest.mark.slow,
        ),
        ("core:head", ["", "head"]),
        ("eager", [""]),
    ],
)
def test_a_recipe_gives_what_its_lines_give(
    tmp_path: Path, name: str, replaced: list[str]
) -> None:
    plain = Net()
    recipe = recipe_for(plain, name)
    path = recipe.write(tmp_path / "torchproof.toml")
    counter = CompileCounter()
    pasted = {"model": copy.deepcopy(plain), "counter": counter}
    exec(recipe.lines.replace('backend="aot_eager"', "backend=counter"), pasted)
    model = followed(copy.deepcopy(plain), path)
    for call in calls():
        torch.testing.assert_close(model(*call), plain(*call))
        pasted["model"](*call)  # type: ignore[operator]
    found = torchproof.status(model)
    assert found.strategy == name and found.why == f"recipe {path}"
    assert parts(model) == replaced
    assert not found.fallbacks
    # As often as the lines: marks and dynamic shapes hold from the first call on.
    assert len(found.compilations) == counter.frame_count
    assert found.compiled_calls == (0 if name == "eager" else len(ROWS))


@pytest.mark.slow
def test_in_a_fresh_process(tmp_path: Path) -> None:
    """The same strategy and outputs, of a class that is loaded by another name."""
    plain = Net()
    recipe_for(plain, "regional:marks").write(tmp_path / "torchproof.toml")
    torch.save(plain.state_dict(), tmp_path / "weights.pt")
    torch.save(calls(), tmp_path / "calls.pt")
    (tmp_path / "served.py").write_text(Path(recipe_nets.__file__).read_text())
    program = """
import torch, torchproof
from served import Net
model = Net()
model.load_state_dict(torch.load("weights.pt"))
model = torchproof.compile(model, recipe="torchproof.toml")
with torch.no_grad():
    torch.save([model(*call) for call in torch.load("calls.pt")], "answers.pt")
print(torchproof.status(model))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Net: regional:marks (recipe torchproof.toml)\n")
    tokens = ("3 calls,", "100%", "0 recompiles")
    assert all(token in done.stdout for token in tokens)
    given, answers = (torch.load(tmp_path / f"{n}.pt") for n in ("calls", "answers"))
    for call, answer in zip(given, answers, strict=True):
        torch.testing.assert_close(answer, plain(*call))


def test_regions_are_those_of_the_recipe_and_nothing_is_searched() -> None:
    plain = Net()
    recipe = recipe_for(plain, "regional")
    (site,) = recipe.plan.sites
    fewer = dataclasses.replace(site, paths=site.paths[:2])
    recipe = dataclasses.replace(recipe, plan=Plan((fewer,)))
    model = followed(plain, recipe)
    model(*calls()[0])
    assert parts(model) == ["", "blocks.0", "blocks.1"]
    assert torchproof.status(model).compiled_calls == 1  # also the first one


@pytest.mark.parametrize("named", [True, False])
def test_nested_blocks_share_their_code(named: bool) -> None:
    """Also where nobody has named them, and a call is watched for them."""
    plain, found = Net(), list[Any]()
    recipe = recipe_for(plain, "nested")
    if not named:
        recipe = dataclasses.replace(recipe, plan=Plan())
    model = followed(copy.deepcopy(plain), recipe)
    with subgraphs.each_graph(found.append):
        for call in calls()[:1] * 2:
            torch.testing.assert_close(model(*call), plain(*call))
    ((region,),) = found
    assert region.modules  # one region, the code of every block
    assert parts(model) == ["", "blocks.0", "blocks.1", "blocks.2"]
    assert not torchproof.status(model).fallbacks


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("train", [True, False])
def test_regions_are_trained_only_if_that_was_measured(train: bool) -> None:
    """Inductor of torch 2.13 loses gradients of the first one, in some models."""
    plain, found = Net(), list[Any]()
    recipe = dataclasses.replace(recipe_for(plain, "nested"), train=train)
    model = followed(copy.deepcopy(plain), recipe)
    (x,) = calls()[0]
    with torch.enable_grad(), subgraphs.each_graph(found.append):
        for each in (model, plain):
            each(x).sum().backward()
    assert len(found) == train
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert not torchproof.status(model).fallbacks


def test_options_of_the_recipe_reach_the_compiler() -> None:
    model = nn.Linear(4, 4)
    arguments = {"options": {"max_autotune": False, "epilogue_fusion": False}}
    strategy = Strategy("full:max-autotune", "full", arguments)
    recipe = Recipe(strategy, model=fingerprint(model))
    entry = vars(followed(model, recipe))["forward"]
    assert entry.options.compile_with == arguments
    assert entry.load_compiler() is entry.engine


def test_status_tells_the_recipe(tmp_path: Path) -> None:
    model = Net()
    recipe = recipe_for(model, "full")
    environment = {**recipe.environment, "cores": 99}
    recipe = dataclasses.replace(
        recipe, environment=environment, other={"shade": "blue"}
    )
    path = recipe.write(tmp_path / "mine.toml")
    found = torchproof.status(followed(model, path))
    told = str(found)
    assert f"Net: full (recipe {path})" in told
    assert recipe.run in told and "cores 99" in told and "shade" in told
    plain = json.loads(json.dumps(found.to_json()))["recipe"]
    assert (plain["run"], plain["followed"]) == (recipe.run, True)


def test_fullgraph_makes_no_break_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x + 1

    model = Broken()
    strategy = Strategy(
        "full:fullgraph", "full", {"fullgraph": True, "backend": "eager"}
    )
    model = followed(model, Recipe(strategy, model=fingerprint(model)))
    assert model(torch.ones(1)).item() == 2


def test_functions_follow_recipes_too() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    strategy = Strategy("full", "full", {"backend": "aot_eager"})
    recipe = Recipe(strategy, model=fingerprint(double))
    made = followed(double, recipe)
    assert made(torch.ones(2)).sum() == 4
    assert torchproof.status(made).compiled_calls == 1
    decorated = torchproof.compile(recipe=recipe)(double)
    assert torchproof.status(decorated).recipe["followed"]


def test_copies_and_pickles_follow_it_again(tmp_path: Path) -> None:
    plain = Net()
    path = recipe_for(plain, "regional").write(tmp_path / "torchproof.toml")
    model, call = followed(copy.deepcopy(plain), path), calls()[0]
    model(*call)
    path.unlink()  # what was read once is carried along
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(again(*call), plain(*call))
        found = torchproof.status(again)
        assert found.strategy == "regional" and found.compiled_calls == 1
        assert found.recipe is not None and found.recipe["followed"]


def test_a_copy_that_was_changed_is_looked_at_again() -> None:
    model = followed(Net(), recipe_for(Net(), "regional"))
    other = copy.deepcopy(model)
    other.blocks = other.blocks[:1]
    other(*calls()[0])
    assert "fewer parameters" in torchproof.status(other).why
    model(*calls()[0])
    assert torchproof.status(model).strategy == "regional"


def test_threads_follow_it_once() -> None:
    plain = Net()
    model = followed(copy.deepcopy(plain), recipe_for(plain, "regional:marks"))
    answers: dict[int, torch.Tensor] = {}
    given = calls() * 4

    def work(number: int) -> None:
        with torch.no_grad():  # which is each thread's own
            answers[number] = model(*given[number])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(given))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number, call in enumerate(given):
        torch.testing.assert_close(answers[number], plain(*call))
    assert torchproof.status(model).calls == len(given)
    assert not torchproof.status(model).fallbacks


def test_marks_of_arguments_that_a_call_does_not_have() -> None:
    def add(x: torch.Tensor, more: Any = None) -> torch.Tensor:
        return x if more is None else x + more["y"][0]

    site = parse("full").plan(add, []).sites[0]
    ways = {("more", "y", 0): (0, 5), (1, "z"): (0,), (0,): (0,)}
    plan = Plan((dataclasses.replace(site, varying=ways),))
    strategy = Strategy("full:marks", "full", {"backend": "eager"}, marks=True)
    made = followed(add, Recipe(strategy, plan, model=fingerprint(add)))
    for rows in (2, 3):
        x = torch.ones(rows)
        assert made(x).sum() == rows
        assert made(x, more={"y": [x]}).sum() == 2 * rows
        assert made(x, {"y": (x,), "z": 3}).sum() == 2 * rows
