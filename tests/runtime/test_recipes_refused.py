"""Recipes that are not followed are told in one line, and the rest is as always."""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_nets import Net, calls, followed, parts, recipe_for
from torch import nn

import torchproof
from torchproof.records.run import UserError
from torchproof.strategies.plan import Plan, Site
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.strategy import Strategy


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.compiler.reset()


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
        ({"torch": "1.9.0"}, r"torch 1\.9\.0\b"),
        ({"device": "cuda", "torch": "1.9.0"}, r"device cuda\b.*\bcpu\b"),
    ],
)
def test_another_place(environment: Any, why: str, caplog: Any) -> None:
    recipe = recipe_for(Net(), "full")
    recipe = dataclasses.replace(
        recipe, environment={**recipe.environment, **environment}
    )
    told = eager_because(Net(), recipe, caplog)
    assert re.search(why, told) and "torchproof tune" in told


def test_another_model(caplog: Any) -> None:
    recipe = recipe_for(Net(), "regional")
    assert "20 more" in eager_because(Net(blocks=4), recipe, caplog)
    why = eager_because(nn.Linear(4, 4), recipe, caplog)
    assert re.search(r"\bNet\b.*\bLinear\b", why)
    changed = {"code": {"mine": "0" * 32}}
    changed = dataclasses.replace(recipe, model={**recipe.model, **changed})
    assert "code of mine" in eager_because(Net(), changed, caplog)
    lost = dataclasses.replace(recipe.plan.sites[0], paths=("layers.0",))
    lost = dataclasses.replace(recipe, plan=Plan((lost,)))
    assert "'layers.0'" in eager_because(Net(), lost, caplog)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "schema"),
        (b"\x00\xff\xfe", "byte 1"),
        (b'schema = 1\nstrategy = "fu', "TOML"),
        (b'schema = 99\nstrategy = "full"', "99"),
        (b'schema = 1\nstrategy = "warp"', "'warp'"),
        (b'schema = 1\nstrategy = "full"\ntrain = 3', "train"),
    ],
)
def test_a_damaged_file(content: bytes, why: str, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "torchproof.toml"
    path.write_bytes(content)
    told = eager_because(Net(), path, caplog)
    assert told.startswith(f"{path} ") and why in told.removeprefix(f"{path} ")


def test_options_that_torch_does_not_know(caplog: Any) -> None:
    strategy = Strategy("full", "full", {"options": {"no_such_option": True}})
    recipe = Recipe(strategy, model=fingerprint(Net()))
    assert "no_such_option" in eager_because(Net(), recipe, caplog)


def test_a_model_may_be_moved_before_its_first_call(caplog: Any) -> None:
    model = Net().to("meta")
    recipe = recipe_for(Net(), "full")
    with caplog.at_level(logging.WARNING, "torchproof"):
        torchproof.compile(model, recipe=recipe)
        told = str(torchproof.status(model))
        assert re.search(r"device cpu\b.*\bmeta\b", told)
        model.to_empty(device="cpu").load_state_dict(Net().state_dict())
        model(*calls()[0])
    assert torchproof.status(model).strategy == "full"
    assert torchproof.status(model).recipe["followed"]  # type: ignore[index]
    assert not caplog.records


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


@torch._dynamo.register_backend(name="test_failing_backend")
def failing(*_: Any) -> Any:
    raise RuntimeError("no code")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", ["full", "regional", "nested"])
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

_REGIONS = 'schema = 1\nstrategy = "regional"\n[[regions]]\nplace = "MODEL.x"\npaths = '
UNUSABLE = {
    "the model itself": _REGIONS + '[""]',
    "the model among others": _REGIONS + '["blocks.0", ""]',
    "twice": _REGIONS + '["blocks.0", "blocks.0"]',
    "nested": _REGIONS + '["blocks", "blocks.0"]',
    "an empty step": _REGIONS + '["blocks..0"]',
    "a dot at the end": _REGIONS + '["blocks."]',
    "unknown": _REGIONS + '["nowhere"]',
    "through a parameter": _REGIONS + '["blocks.0.weight.data"]',
    "no text": _REGIONS + "[0]",
    "the forward": 'schema = 1\nstrategy = "core:forward"',
    "no such method": 'schema = 1\nstrategy = "core:nothing"',
    "core of nothing": 'schema = 1\nstrategy = "core"',
    "no such strategy": 'schema = 1\nstrategy = "fastest"',
    "schema 0": 'schema = 0\nstrategy = "full"',
    "schema below 0": 'schema = -1\nstrategy = "full"',
    "no such mode": 'schema = 1\nstrategy = "full"\n[compile]\nmode = "no-such"',
    "no such option": 'schema = 1\nstrategy = "full"\n[compile.options]\nno_such = 1',
    "no such backend": 'schema = 1\nstrategy = "full"\n[compile]\nbackend = "no_such"',
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_a_recipe_says_and_cannot_be_is_told(
    name: str, tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "r.toml").write_text(UNUSABLE[name])
    assert eager_because(Net(), tmp_path / "r.toml", caplog)


@pytest.mark.parametrize(
    "paths", [("",), ("blocks.0", "blocks.0"), ("blocks", "blocks.0"), (3,)]
)
def test_a_recipe_made_in_a_program_is_checked_as_well(paths: Any, caplog: Any) -> None:
    recipe = Recipe(Strategy("regional", "regional", {}), Plan((Site("", "", paths),)))
    assert eager_because(Net(), recipe, caplog)


def test_the_whole_model_is_no_method_of_itself() -> None:
    with pytest.raises(UserError, match="full"):
        torchproof.compile(Net(), strategy="core:forward")
