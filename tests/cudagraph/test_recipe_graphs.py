"""Recipes with a graph: whole calls replayed where forward stood, or the whole step."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from pathlib import Path
from typing import Any

import graph_models
import pytest
import torch
from graph_models import Net, applied, close, close_gradients, without_code
from torch import nn

import torchproof
from torchproof.records.run import UserError
from torchproof.runtime.cudagraph import graphed_step, preparation, recorder
from torchproof.runtime.production import compiled_forward_of
from torchproof.strategies import Recipe, environment_here
from torchproof.strategies.recipe import loads
from torchproof.torch_private.comparison import Comparison

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


X = torch.linspace(-1, 1, 8).view(2, 4)
NAMES = ("eager+graph", "full+graph", "regional+graph", "nested+graph")
NAMES += ("core+graph:blocks.1",)
DEVICES_AND_NAMES = [
    ("cpu", "full+graph"),
    ("cpu", "nested+graph"),
    ("cpu", NAMES[-1]),
    *(pytest.param("cuda", each, marks=pytest.mark.gpu) for each in NAMES),
]


def recipe_for(model: nn.Module, name: str, **more: Any) -> Recipe:
    recipe = graph_models.recipe_for(model, name, **more)
    on_cpu = next(model.parameters()).device.type == "cpu"
    return without_code(recipe) if on_cpu else recipe


@pytest.mark.parametrize(("device", "name"), DEVICES_AND_NAMES)
def test_calls_without_gradients_are_replayed_and_others_never(
    device: str, name: str
) -> None:
    plain, model = applied(name, device=device)
    x = X.to(device)
    with torch.no_grad():
        for each in (x, x * 2, torch.cat([x, x]), x * 3):
            close(model(each), plain(each))
    found = torchproof.status(model)
    assert found.strategy == name and found.compiled_calls == 4
    assert found.graph is not None and found.graph["replays"] == 4
    assert found.graph["recordings"] == 2 and not found.graph["stops"]
    for each in (plain, model):  # with gradients: not replayed
        each.zero_grad()
        each(x).sum().backward()
    close_gradients(model, plain)
    with torch.no_grad():
        close(model(x), plain(x))
        model.train()(x)
    found = torchproof.status(model)
    assert found.graph is not None and found.graph["replays"] == 5
    assert not found.fallbacks and not found.graph["stops"]
    assert any("model.eval()" in note for note in found.notes)


def test_new_weights_are_seen_and_copies_record_anew() -> None:
    plain, model = applied("full+graph")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(X), plain(X))
            for each in (*plain.parameters(), *model.parameters()):
                each.mul_(0.5)
        model.load_state_dict(plain.state_dict())
        torch.testing.assert_close(model(X), plain(X))
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(again(X), plain(X))
            found = torchproof.status(again)
            assert found.graph is not None and found.graph["recordings"] == 1


def test_a_recording_that_takes_too_long_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder._Attempt, "_rehearsed", graph_models.spin)
    plain, model = applied("full+graph", deadline=0.5)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "torchproof"):
        for _ in range(2):
            torch.testing.assert_close(model(X), plain(X))
    found = torchproof.status(model)
    assert found.graph is not None and found.graph["replays"] == 0
    assert found.compiled_calls == 0
    (line,) = [r.getMessage() for r in caplog.records if "deadline" in r.getMessage()]
    assert "recording" in line and "0.5 s" in line


def test_a_graph_that_cannot_be_made_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no graph today")

    monkeypatch.setattr(graphed_step, "Graphed", fails)
    plain, model = applied("full+graph")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(X), plain(X))
    found = torchproof.status(model)
    assert found.compiled_calls == 2 and found.graph is None
    assert any(note.endswith(": RuntimeError: no graph today") for note in found.notes)


def test_code_that_was_seen_to_be_wrong_does_not_run_without_its_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the CPU what is recorded is not compiled: so the verdict is put in."""

    def compiled(*_: Any) -> None:
        raise AssertionError("the code that was wrong has been run")

    verdict = Comparison("wrong", why="by one")
    monkeypatch.setattr(recorder, "compare_results", lambda *_: verdict)
    monkeypatch.setattr(preparation.Full, "apart", compiled)
    plain = Net().eval()
    step = torchproof.graph(plain, recipe=recipe_for(plain, "full+graph"))
    for _ in range(2):
        torch.testing.assert_close(step(X), plain(X).detach())
    assert "eager" in step.falls_back[0] and verdict.why in step.falls_back[0]


def test_verify_compares_what_is_replayed() -> None:
    plain, model = applied("full+graph", verify=1)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(X), plain(X))
    found = torchproof.status(model)
    assert [each["verdict"] for each in found.verifications] == ["same", "same"]


def test_who_does_not_wait_gets_no_graph_of_another_backend() -> None:
    plain = Net().eval()
    recipe = recipe_for(plain, "full+graph")
    model = torchproof.compile(copy.deepcopy(plain), recipe=recipe, wait=False)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(X), plain(X))
    found = torchproof.status(model)
    assert found.graph is None and found.strategy == "full"
    (note,) = found.notes
    assert note.startswith("wait=False: no CUDA graph") and "backend eager" in note


def test_a_training_step_is_for_graph_and_compile_says_so() -> None:
    plain = Net()
    recipe = recipe_for(plain, "full+graph", train=True)
    model = torchproof.compile(copy.deepcopy(plain), recipe=recipe)
    model(X).sum().backward()
    found = torchproof.status(model)
    assert not found.fallbacks
    assert found.strategy == "full" and found.compiled_calls == 1
    assert any("torchproof.graph(model, recipe=" in note for note in found.notes)
    assert compiled_forward_of(model)._replayer is None


# -- torchproof.graph ------------------------------------------------------------------


@pytest.mark.parametrize(("device", "name"), DEVICES_AND_NAMES)
def test_the_whole_step_by_a_recipe(device: str, name: str) -> None:
    plain = Net().to(device)
    model = copy.deepcopy(plain)
    step = torchproof.graph(model, recipe=recipe_for(plain, name, train=True))
    for number in (1, 2, 3):
        x = X.to(device) * number
        answer, expected = step(x), plain(x)
        expected.mean().backward()
        close(answer, expected.detach())
        assert step.status().replays == number, step.status()
        close_gradients(model, plain)
    assert not step.falls_back


@pytest.mark.parametrize("cause", ["torch 1.9", "TORCHPROOF_DISABLE", "strategy"])
def test_a_recipe_that_does_not_apply_leaves_the_step_as_it_is(
    cause: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another torch, switched off, or a file that is no recipe."""
    plain = Net()
    model, recipe = copy.deepcopy(plain), recipe_for(plain, "full+graph", train=True)
    if cause == "torch 1.9":
        recipe = dataclasses.replace(recipe, environment={"torch": "1.9"})
    elif cause == "strategy":
        recipe = tmp_path / "torchproof.toml"
        recipe.write_text("schema = 1")
    else:
        monkeypatch.setenv(cause, "1")
    with caplog.at_level(logging.WARNING, "torchproof"):
        step = torchproof.graph(model, recipe=recipe, train=True)
        step(X)
    plain(X).mean().backward()
    close_gradients(model, plain)
    (why,) = step.falls_back
    assert cause in why and len(caplog.records) == 1
    assert (step.status().plain_calls, step.status().recordings) == (1, 0)


def test_a_recipe_without_a_graph_is_compiled_and_not_recorded() -> None:
    plain = Net()
    step = torchproof.graph(copy.deepcopy(plain), recipe=recipe_for(plain, "full"))
    torch.testing.assert_close(step(X), plain(X).detach())
    assert step.status().strategy == "full" and step.status().recordings == 0
    (why,) = step.falls_back
    assert "recipe" in why and "full" in why


def test_buckets_of_a_recipe_are_padded_to() -> None:
    plain = Net()
    buckets = {"pad": {"x": ["batch", None]}, "sizes": [4, 8]}
    recipe = recipe_for(plain, "eager+graph", buckets=buckets)
    recipe = loads(recipe.dumps())
    step = torchproof.graph(copy.deepcopy(plain), recipe=recipe)
    for rows in (2, 3, 4):
        x = torch.linspace(-1, 1, rows * 4).view(rows, 4)
        torch.testing.assert_close(step(x), plain(x).detach())
    assert step.status().recordings == 1


def test_what_a_program_gets_wrong_about_a_recipe_raises(tmp_path: Path) -> None:
    model, path = Net(), tmp_path / "torchproof.toml"
    recipe = recipe_for(model, "full+graph", train=True)
    path.write_text("schema = 1")
    for each, settings, why in [
        (recipe, {"strategy": "full"}, "recipe and strategy"),
        (recipe, {"options": {}}, "recipe and options"),
        (recipe, {"train": False}, "train=True"),
        (tmp_path / "none.toml", {}, "none.toml"),
        (path, {}, "strategy"),
    ]:
        with pytest.raises(UserError, match=why):
            torchproof.graph(model, recipe=each, **settings)


# -- recipes of a GPU ------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
def test_a_model_is_moved_and_compiled_with_the_options_of_a_recipe(
    device: str, tmp_path: Path
) -> None:
    plain = Net().to(device).eval()
    environment = environment_here(plain)
    assert environment["device"] == "cuda" and environment["triton"]
    assert environment["gpu"] == torch.cuda.get_device_name()
    path = recipe_for(plain, "full+graph").write(tmp_path / "torchproof.toml")
    options = "\n[compile.options]\ncoordinate_descent_tuning = true\n"
    path.write_text(path.read_text() + options)
    model = torchproof.compile(copy.deepcopy(plain).cpu(), recipe=path)
    model.to(device)  # before its first call
    with torch.no_grad():
        close(model(X.to(device)), plain(X.to(device)))
    found = torchproof.status(model)
    assert found.strategy == "full+graph"
    assert found.graph is not None and found.graph["replays"] == 1, str(found)
