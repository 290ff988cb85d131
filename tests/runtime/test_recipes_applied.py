"""torchproof.compile with a recipe: followed as it was measured, or eager and told."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import torchproof
from torchproof.recipe import Recipe
from torchproof.recipe.fingerprint import fingerprint
from torchproof.recipe.matching import environment_here
from torchproof.records import UserError
from torchproof.strategies import Strategy, parse
from torchproof.strategies.plans import Plan
from torchproof.torch_private import subgraphs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).tanh() * scale.sum()


class Net(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=x)
        return self.head(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x, x)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.compiler.reset()


ROWS = (3, 5, 7)


def calls() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(rows, 4),) for rows in ROWS]


def recipe_for(model: Any, name: str, **more: Any) -> Recipe:
    """As a search makes one, with a backend that compiles at once."""
    strategy = parse(name)
    plan = strategy.plan(copy.deepcopy(model), calls())
    if strategy.compiles:
        arguments = {**strategy.arguments, "backend": "aot_eager"}
        strategy = dataclasses.replace(strategy, arguments=arguments)
    made = {
        "plan": plan,
        "run": "20261115-0102-net",
        "lines": strategy.source("model", plan),
        "environment": environment_here(model),
        "model": fingerprint(model),
    }
    return Recipe(strategy, **{**made, **more})


def followed(model: Any, recipe: Any, **more: Any) -> Any:
    model = torchproof.compile(model, recipe=recipe, **more)
    assert torchproof.status(model).recipe["followed"]  # type: ignore[index]
    return model


def parts(model: nn.Module) -> list[str]:
    """The modules that have something else in the place of their forward."""
    return [path for path, each in model.named_modules() if "forward" in vars(each)]


# -- followed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "replaced"),
    [
        ("full", [""]),
        ("full:dynamic", [""]),
        ("full:marks", [""]),
        ("regional", ["", "blocks.0", "blocks.1", "blocks.2"]),
        ("regional:marks", ["", "blocks.0", "blocks.1", "blocks.2"]),
        ("nested", ["", "blocks.0", "blocks.1", "blocks.2"]),
        ("nested:marks", ["", "blocks.0", "blocks.1", "blocks.2"]),
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
    assert f"recipe {path} of run 20261115-0102-net: followed; cores 99 in the" in told
    assert "does not know, and leaves out: shade" in told
    assert json.loads(json.dumps(found.to_json()))["recipe"]["run"] == recipe.run


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
    assert "parameters less" in torchproof.status(other).why
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


# -- not followed ----------------------------------------------------------------------


def eager_because(model: Any, recipe: Any, caplog: Any) -> str:
    """The one line that says why a recipe is not followed."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "torchproof"):
        model = torchproof.compile(model, recipe=recipe)
        before = torchproof.status(model)
        model(*calls()[0])
    found = torchproof.status(model)
    assert found.strategy == before.strategy == "eager" and found.why == before.why
    assert found.compiled_calls == 0 and parts(model) == [""]
    assert found.recipe is not None and not found.recipe["followed"]
    (fallback,) = found.fallbacks
    assert fallback.kind == "recipe"
    (record,) = caplog.records
    assert fallback.why in record.getMessage() and "\n" not in record.getMessage()
    return fallback.why


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"torch": "1.9.0"}, "torch 1.9.0 in the recipe"),
        ({"device": "cuda", "torch": "1.9.0"}, "device cuda in the recipe, cpu here"),
    ],
)
def test_another_place(environment: Any, why: str, caplog: Any) -> None:
    recipe = recipe_for(Net(), "full")
    recipe = dataclasses.replace(
        recipe, environment={**recipe.environment, **environment}
    )
    told = eager_because(Net(), recipe, caplog)
    assert why in told and "torchproof tune makes one for here" in told


def test_another_model(caplog: Any) -> None:
    recipe = recipe_for(Net(), "regional")
    assert "20 parameters more" in eager_because(Net(blocks=4), recipe, caplog)
    assert "model Net in the recipe, Linear here" in eager_because(
        nn.Linear(4, 4), recipe, caplog
    )
    changed = {"code": {"mine": "0" * 32}}
    changed = dataclasses.replace(recipe, model={**recipe.model, **changed})
    assert "the code of mine is not what" in eager_because(Net(), changed, caplog)
    lost = dataclasses.replace(recipe.plan.sites[0], paths=("layers.0",))
    lost = dataclasses.replace(recipe, plan=Plan((lost,)))
    assert "the model has no part 'layers.0'" in eager_because(Net(), lost, caplog)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no schema number"),
        (b"\x00\xff\xfe", "byte 1 is not text"),
        (b'schema = 1\nstrategy = "fu', "not TOML"),
        (b'schema = 99\nstrategy = "full"', "install a newer torchproof"),
        (b'schema = 1\nstrategy = "warp"', "no strategy 'warp'"),
        (b'schema = 1\nstrategy = "full"\ntrain = 3', "train must be true or false"),
    ],
)
def test_a_damaged_file(content: bytes, why: str, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "torchproof.toml"
    path.write_bytes(content)
    told = eager_because(Net(), path, caplog)
    assert why in told and told.startswith(f"{path} is not followed: ")


def test_options_that_torch_does_not_know(caplog: Any) -> None:
    strategy = Strategy("full", "full", {"options": {"no_such_option": True}})
    recipe = Recipe(strategy, model=fingerprint(Net()))
    assert "no_such_option" in eager_because(Net(), recipe, caplog)


def test_a_model_may_be_moved_before_its_first_call(caplog: Any) -> None:
    model = Net().to("meta")
    recipe = recipe_for(Net(), "full")
    with caplog.at_level(logging.WARNING, "torchproof"):
        torchproof.compile(model, recipe=recipe)
        told = "to be decided; device cpu in the recipe, meta here, unless it is moved"
        assert told in str(torchproof.status(model))
        model.to_empty(device="cpu").load_state_dict(Net().state_dict())
        model(*calls()[0])
    assert torchproof.status(model).strategy == "full"
    assert torchproof.status(model).recipe["followed"]  # type: ignore[index]
    assert not caplog.records


def test_what_is_wrong_in_the_program_raises(tmp_path: Path) -> None:
    model = Net()
    for recipe, settings, why in [
        (tmp_path / "none.toml", {}, "No such file"),
        (3, {}, "give the path of a file or a Recipe, not a int"),
        (recipe_for(model, "full"), {"strategy": "full"}, "recipe and strategy: "),
        (recipe_for(model, "full"), {"mode": "default"}, "recipe and mode: "),
    ]:
        with pytest.raises(UserError, match=why) as caught:
            torchproof.compile(model, recipe=recipe, **settings)
        assert "\n" not in str(caught.value)
        assert not parts(model)


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPROOF_DISABLE", "1")
    model = Net()
    assert torchproof.compile(model, recipe=tmp_path / "none.toml") is model
    assert not parts(model)


# -- as always -------------------------------------------------------------------------


def test_verify_monitor_and_retry_work_as_always() -> None:
    plain = Net()
    recipe = recipe_for(plain, "regional")
    model = followed(copy.deepcopy(plain), recipe, verify=2, monitor=True)
    for call in calls():
        torch.testing.assert_close(model(*call), plain(*call))
    found = torchproof.status(model)
    assert [each["verdict"] for each in found.verifications] == ["same", "same"]
    assert found.latency
    torchproof.retry(model)
    model(*calls()[0])
    assert torchproof.status(model).strategy == "regional"
    assert torchproof.status(model).recipe["followed"]  # type: ignore[index]


def test_nothing_of_it_is_waited_for() -> None:
    plain = Net()
    model = followed(copy.deepcopy(plain), recipe_for(plain, "full"), wait=False)
    for call in calls():
        torch.testing.assert_close(model(*call), plain(*call))
    assert not torchproof.status(model).fallbacks


def test_a_compiled_failure_falls_back_as_always() -> None:
    plain = Net()
    recipe = recipe_for(plain, "full")
    strategy = dataclasses.replace(
        recipe.strategy, arguments={"backend": "test_failing_backend"}
    )

    @torch._dynamo.register_backend(name="test_failing_backend")
    def failing(*_: Any) -> Any:
        raise RuntimeError("no code")

    model = followed(
        copy.deepcopy(plain), dataclasses.replace(recipe, strategy=strategy)
    )
    call = calls()[0]
    torch.testing.assert_close(model(*call), plain(*call))
    (fallback,) = torchproof.status(model).fallbacks
    assert fallback.kind == "compile error"
