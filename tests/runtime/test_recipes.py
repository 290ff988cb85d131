"""A recipe is followed as it was measured, or the model runs eager with the reason."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import torchproof
from torchproof.records.run import UserError
from torchproof.strategies import planning, source_lines
from torchproof.strategies.plan import Plan
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.recipe.matching import environment_here
from torchproof.strategies.strategy import Strategy, parse
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


ROWS = (3, 5, 7)


def calls() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(rows, 4),) for rows in ROWS]


def recipe_for(model: Any, name: str, **more: Any) -> Recipe:
    """As a search makes one, with a backend that compiles at once."""
    strategy = parse(name)
    plan = planning.plan(strategy, copy.deepcopy(model), calls())
    if strategy.compiles:
        arguments = {**strategy.arguments, "backend": "aot_eager"}
        strategy = dataclasses.replace(strategy, arguments=arguments)
    made = {
        "plan": plan,
        "run": "20261115-0102-net",
        "lines": source_lines.lines(strategy, "model", plan),
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
        ("regional:marks", ["", "blocks.0", "blocks.1", "blocks.2"]),
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
    assert found.strategy == name
    assert parts(model) == replaced
    assert not found.fallbacks
    # As often as the lines: marks and dynamic shapes hold from the first call on.
    assert len(found.compilations) == counter.frame_count
    assert found.compiled_calls == (0 if name == "eager" else len(ROWS))


def test_functions_follow_recipes_and_status_names_what_differs(tmp_path: Path) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    strategy = Strategy("full", "full", {"backend": "aot_eager"})
    model, environment = fingerprint(double), {"cores": 99}
    recipe = Recipe(strategy, run="a-run", model=model, environment=environment)
    made = followed(double, recipe.write(tmp_path / "mine.toml"))
    assert made(torch.ones(2)).sum() == 4
    found = torchproof.status(made)
    assert found.compiled_calls == 1 and "cores 99" in str(found)
    assert json.loads(json.dumps(found.to_json()))["recipe"]["run"] == "a-run"
    decorated = torchproof.compile(recipe=recipe)(double)
    assert torchproof.status(decorated).recipe["followed"]  # type: ignore[index]


def test_nested_blocks_share_their_code() -> None:
    """Also where the recipe does not name them, and a call is recorded to find them."""
    plain, found = Net(), list[Any]()
    recipe = dataclasses.replace(recipe_for(plain, "nested"), plan=Plan())
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


# -- not followed ----------------------------------------------------------------------


def eager_because(model: Any, recipe: Any, caplog: Any) -> str:
    """The one line that says why a recipe is not followed."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "torchproof"):
        model = torchproof.compile(model, recipe=recipe)
        before = torchproof.status(model)
        assert before.strategy == "eager"
        model(*calls()[0])
    found = torchproof.status(model)
    assert found.strategy == "eager" and found.why == before.why
    assert found.compiled_calls == 0 and parts(model) == [""]
    assert found.recipe is not None and not found.recipe["followed"]
    (fallback,) = found.fallbacks
    assert fallback.kind == "recipe"
    (record,) = caplog.records
    assert fallback.why in record.getMessage() and "\n" not in record.getMessage()
    return fallback.why


def test_another_model_or_place(caplog: Any) -> None:
    """tests/recipe has each difference."""
    recipe = recipe_for(Net(), "regional")
    place = {**recipe.environment, "device": "cuda", "torch": "1.9.0"}
    elsewhere = dataclasses.replace(recipe, environment=place)
    assert re.search(r"device cuda\b.*\bcpu\b", eager_because(Net(), elsewhere, caplog))
    assert "20 more" in eager_because(Net(blocks=4), recipe, caplog)
    lost = dataclasses.replace(recipe.plan.sites[0], paths=("layers.0",))
    lost = dataclasses.replace(recipe, plan=Plan((lost,)))
    assert "'layers.0'" in eager_because(Net(), lost, caplog)


def test_what_is_wrong_in_the_program_raises(tmp_path: Path) -> None:
    model = Net()
    for recipe, settings, why in [
        (tmp_path / "none.toml", {}, "none.toml"),
        (3, {}, "recipe=3"),
        (recipe_for(model, "full"), {"strategy": "full"}, "recipe and strategy"),
        (recipe_for(model, "full"), {"mode": "default"}, "recipe and mode"),
    ]:
        with pytest.raises(UserError, match=why) as caught:
            torchproof.compile(model, recipe=recipe, **settings)
        assert "\n" not in str(caught.value)
        assert not parts(model)


# -- as always -------------------------------------------------------------------------


def test_verify_and_retry_work_as_always() -> None:
    plain = Net()
    recipe = recipe_for(plain, "regional")
    model = followed(copy.deepcopy(plain), recipe, verify=2)
    for call in calls():
        torch.testing.assert_close(model(*call), plain(*call))
    found = torchproof.status(model)
    assert [each["verdict"] for each in found.verifications] == ["same", "same"]
    torchproof.retry(model)
    model(*calls()[0])
    assert torchproof.status(model).strategy == "regional"
    assert torchproof.status(model).recipe["followed"]  # type: ignore[index]


@torch._dynamo.register_backend(name="test_failing_backend")
def failing(*_: Any) -> Any:
    raise RuntimeError("no code")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", ["regional", "nested"])
def test_what_cannot_be_compiled_falls_back_as_always(name: str) -> None:
    """Also its backward, which torch cannot run of a region in a graph."""
    plain = Net()
    recipe = recipe_for(plain, name)
    arguments = {"backend": "test_failing_backend"}
    strategy = dataclasses.replace(recipe.strategy, arguments=arguments)
    recipe = dataclasses.replace(recipe, strategy=strategy)
    model = followed(copy.deepcopy(plain), recipe)
    (x,) = calls()[0]
    with torch.enable_grad():
        answer, expected = model(x), plain(x)
        torch.testing.assert_close(answer, expected)
        answer.sum().backward()
        expected.sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    kinds = {each.kind for each in torchproof.status(model).fallbacks}
    assert kinds == {"compile error"}


# -- contents that cannot be followed --------------------------------------------------

TOP = "schema = 1\nstrategy = "
REGIONS = TOP + '"regional"\n[[regions]]\nplace = "MODEL.x"\npaths = '
# tests/recipe has texts that are no recipe; these do not fit the model or this torch.
UNUSABLE = {
    "no recipe": TOP + '"fu',
    "the model itself": REGIONS + '["blocks.0", ""]',
    "twice": REGIONS + '["blocks.0", "blocks.0"]',
    "nested": REGIONS + '["blocks", "blocks.0"]',
    "unknown": REGIONS + '["blocks..0"]',
    "through a parameter": REGIONS + '["blocks.0.weight.data"]',
    "the forward": TOP + '"core:forward"',
    "no such method": TOP + '"core:nothing"',
    "no such mode": TOP + '"full"\n[compile]\nmode = "no-such"',
    "no such option": TOP + '"full"\n[compile.options]\nno_such = 1',
    "no such backend": TOP + '"full"\n[compile]\nbackend = "no_such"',
}


def test_contents_that_cannot_be_followed_leave_the_model_eager(
    tmp_path: Path, caplog: Any
) -> None:
    for name, content in UNUSABLE.items():
        (tmp_path / "r.toml").write_text(content)
        assert eager_because(Net(), tmp_path / "r.toml", caplog), name
    (tmp_path / "r.toml").write_bytes(b"\x00\xff\xfe")
    assert eager_because(Net(), tmp_path / "r.toml", caplog)
