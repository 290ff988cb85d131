"""Settings of verified fixes in a recipe, and `torchproof.compile` that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fix_runs import run_of, setting

import torchproof
from torchproof.fixing.delivery import deliver
from torchproof.records import Mark, Setting, UserError
from torchproof.runtime import recipe_following
from torchproof.strategies import Recipe, parse, recipe, recipe_source
from torchproof.strategies.strategy import with_arguments

SCALARS = Setting("dynamo.capture_scalar_outputs", True)
PRINT = Setting("dynamo.ignore_logging_functions", "builtins.print")
INFO = Setting("dynamo.ignore_logging_functions", "logging.Logger.info")
# Generates no code: that is not what the settings are about.
FULL = with_arguments(parse("full"), backend="eager")
DYNAMIC = Setting("compile.dynamic", True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(*settings: Setting) -> Recipe:
    run = deliver(run_of(*map(setting, settings)), write=True)
    assert [fix.written_to for fix in run.fixes] == ["torchproof.toml"] * len(settings)
    return recipe.load("torchproof.toml")


def test_settings_make_a_recipe() -> None:
    made = written(SCALARS, PRINT, INFO, DYNAMIC)
    assert made.dynamo == {
        "capture_scalar_outputs": True,
        "ignore_logging_functions": ["builtins.print", "logging.Logger.info"],
    }
    assert (made.strategy.name, dict(made.strategy.arguments)) == (
        "full",
        {"dynamic": True},
    )
    assert made.target == "model.py:make" and made.environment["torch"] == "2.13.0+cpu"
    text = Path("torchproof.toml").read_text()
    assert text.startswith("# The settings that torchproof fix proved for this model.")


def test_a_recipe_keeps_its_text_and_gets_the_settings() -> None:
    tuned = Recipe(parse("full:dynamic"), target="model.py:make", gain={"value": 2.0})
    text = f"# mine\n{tuned.dumps()}"
    Path("torchproof.toml").write_text(text)
    made = written(SCALARS, PRINT)
    assert Path("torchproof.toml").read_text().startswith(text)
    assert made.strategy == parse("full:dynamic") and len(made.dynamo) == 2
    again = written(INFO, PRINT, DYNAMIC)
    names = again.dynamo["ignore_logging_functions"]
    assert names == ["builtins.print", "logging.Logger.info"]
    assert again.dynamo["capture_scalar_outputs"] is True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not a recipe", "not TOML"),
        (Recipe(parse("full"), target="other.py:make").dumps(), "of other.py:make"),
        (Recipe(parse("full"), train=True).dumps(), "train=True"),
    ],
)
def test_another_file_is_left_as_it_is(text: str, why: str) -> None:
    Path("torchproof.toml").write_text(text)
    [fix] = deliver(run_of(setting(SCALARS)), write=True).fixes
    assert fix.status == "verified" and why in fix.why
    assert Path("torchproof.toml").read_text() == text


def test_marks_and_targets_that_compile_themselves_have_no_recipe() -> None:
    marks = setting(marks=[Mark("x", 0, "mark_dynamic")])
    [fix] = deliver(run_of(marks), write=True).fixes
    assert fix.status == "verified"
    run = run_of(setting(SCALARS), options={"as_written": True})
    [fix] = deliver(run, write=True).fixes
    assert fix.status == "verified" and not Path("torchproof.toml").exists()


def test_a_patch_folder_has_its_recipe() -> None:
    deliver(run_of(setting(SCALARS)), patch="fixes")
    assert recipe.load("fixes/torchproof.toml").dynamo == {
        "capture_scalar_outputs": True
    }


@pytest.mark.parametrize("value", ["1.5", '"text"', "[1]", "{a = 1}"])
def test_settings_of_other_kinds_are_refused(value: str) -> None:
    text = f'schema = 1\nstrategy = "full"\n[dynamo]\nname = {value}\n'
    with pytest.raises(UserError, match=r"dynamo\.name: expected"):
        recipe.loads(text)


def test_compile_applies_the_settings() -> None:
    config = torch._dynamo.config
    logging = set(config.ignore_logging_functions)
    dynamo = {
        "capture_scalar_outputs": True,
        "ignore_logging_functions": ["builtins.print"],
    }

    class Net(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item()  # breaks the graph without the setting

    try:
        net = torchproof.compile(Net(), recipe=Recipe(FULL, dynamo=dynamo))
        assert torch.equal(net(torch.ones(2)), torch.full((2,), 2.0))
        status = torchproof.status(net)
        assert status.strategy == "full" and not status.fallbacks
        assert len(status.compilations) == 1
        assert config.capture_scalar_outputs
        assert print in config.ignore_logging_functions
    finally:
        config.capture_scalar_outputs = False
        config.ignore_logging_functions = logging
        torch.compiler.reset()


@pytest.mark.parametrize(
    ("dynamo", "why"),
    [
        ({"no_such_setting": True}, "has no torch._dynamo.config.no_such_setting"),
        (
            {"ignore_logging_functions": ["nowhere.loaded.print"]},
            "there is no function nowhere.loaded.print",
        ),
    ],
)
def test_settings_that_torch_lacks_are_a_reason_to_run_eager(
    dynamo: dict[str, object], why: str
) -> None:
    source = recipe_source(Recipe(parse("full"), dynamo=dynamo))
    assert why in (recipe_following.apply_settings(source) or "")
    net = torchproof.compile(torch.nn.Linear(2, 2), recipe=source.recipe)
    net(torch.ones(1, 2))
    assert torchproof.status(net).strategy == "eager"
    assert why in str(torchproof.status(net))
