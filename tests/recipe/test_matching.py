"""A model is known again, and what differs from a recipe is named."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchproof.strategies.plan import Plan, Site
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.adoption import recipe_source
from torchproof.strategies.recipe.fingerprint import code_hash, fingerprint
from torchproof.strategies.recipe.matching import (
    differences,
    environment_here,
    environment_of,
)
from torchproof.strategies.strategy import parse

SOURCE = '''
"""A model."""
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(x).relu()

class Net(nn.Module):
    def __init__(self, blocks=2, width=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x * self.scale.sum()

def step(x):
    return x.sin()
'''
GPU = {
    "torch": "2.13.0+cu130",
    "device": "cuda",
    "gpu": "NVIDIA H200",
    "cuda": "13.0",
    "triton": "3.7.0",
    "python": "3.11.7",
    "cores": 16,
}


def module(
    folder: Path, source: str = SOURCE, name: str = "net_of_a_test", called: str = ""
) -> Any:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(called or name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[called or name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def net(tmp_path: Path) -> Any:
    return module(tmp_path).Net()


def recipe_of(model: Any, **more: Any) -> Recipe:
    made = {"environment": environment_here(model), "model": fingerprint(model)}
    return Recipe(parse("full"), **{**made, **more})


Decisive = tuple[str, Any, Any]


def decisive(recipe: Recipe, model: Any, here: Any = None) -> list[Decisive]:
    """What is decisive: its name, its value in the recipe, and that of here."""
    found = [each for each in differences(recipe, model, here) if each.decisive]
    return [(each.what, each.recipe, each.here) for each in found]


def structure(recipe: Recipe, model: Any) -> str:
    """What is said of a model that differs in nothing but its structure."""
    (found,) = differences(recipe, model)
    assert found.decisive and found.what == "structure"
    return str(found)


# -- the model -------------------------------------------------------------------------


def test_model_is_known_again(net: Any, tmp_path: Path) -> None:
    before = fingerprint(net)
    assert before["class"] == "Net"
    assert before["parameters"] == sum(p.numel() for p in net.parameters())
    assert list(before["code"]) == ["net_of_a_test"]
    again = module(tmp_path, name="loaded_by_its_path").Net()
    assert fingerprint(again)["structure"] == before["structure"]
    assert not differences(recipe_of(net), again)
    wrapped = torch.compile(copy.deepcopy(net).eval(), backend="eager")
    wrapped.load_state_dict({k: v + 1 for k, v in wrapped.state_dict().items()})
    assert fingerprint(wrapped) == before
    for block in net.blocks:
        block.__dict__["forward"] = functools.partial(block.forward)
    net.compile(backend="eager")
    assert fingerprint(net) == before
    assert fingerprint(net.forward) == {**before, "class": "Net.forward"}


def test_model_in_a_wrapper_of_ddp_is_the_model(net: Any) -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.module = inner

    assert fingerprint(DistributedDataParallel(net)) == fingerprint(net)


def test_models_that_differ(net: Any) -> None:
    recipe, kind = recipe_of(net), type(net)
    assert "20 more" in structure(recipe, kind(blocks=3))
    assert "28 fewer" in structure(recipe, kind(width=2))
    assert "parameters" not in structure(recipe, kind().half())
    changed = kind()
    changed.blocks[1].inner = nn.Identity()
    changed.blocks[0].more = nn.Linear(4, 4)
    assert "parameters" not in structure(recipe, changed)
    buffer = kind()
    buffer.scale = torch.ones(4)
    assert "parameters" not in structure(recipe, buffer)
    assert decisive(recipe, nn.Linear(4, 4)) == [("model", "Net", "Linear")]


def test_code_that_changes(net: Any, tmp_path: Path) -> None:
    recipe = recipe_of(net)
    layout = SOURCE.replace('"""A model."""', "# A remark.\n\n").replace("4)", "4 , )")
    assert not differences(recipe, module(tmp_path, layout).Net())
    edited = module(tmp_path, SOURCE.replace("relu", "gelu").replace(".gelu()", "*2"))
    ((what, then, here),) = decisive(recipe, edited.Net())
    assert what == "code of net_of_a_test" and then != here is not None
    elsewhere = module(tmp_path, SOURCE.replace("relu", "tanh"), "moved_too")
    (gone,) = differences(recipe, elsewhere.Net())
    assert (gone.what, gone.recipe, gone.here) == (what, then, None) and gone.decisive


def test_file_that_is_loaded_as_a_target_keeps_its_name(
    net: Any, tmp_path: Path
) -> None:
    loaded = module(tmp_path, name="net_of_a_test", called="target_net_of_a_test")
    assert fingerprint(loaded.Net()) == fingerprint(net)
    assert fingerprint(loaded.step)["code"] == fingerprint(net)["code"]


def test_unreadable_code_is_a_difference_but_not_decisive(
    net: Any, tmp_path: Path
) -> None:
    recipe = recipe_of(net)
    (tmp_path / "net_of_a_test.py").unlink()
    assert fingerprint(net)["code"] == {"net_of_a_test": None}
    found = differences(recipe, net)
    assert [each.decisive for each in found] == [False]
    assert (found[0].what, found[0].here) == ("code of net_of_a_test", None)
    assert "net_of_a_test" in str(found[0])


def test_forward_from_another_file_counts(tmp_path: Path, net: Any) -> None:
    above = "from net_of_a_test import Net\nclass Mine(Net):\n    pass\n"
    mine = module(tmp_path, above, "above").Mine()
    assert list(fingerprint(mine)["code"]) == ["above", "net_of_a_test"]


def test_hash_of_code_is_what_recipes_have() -> None:
    source = "def f(x, /, *, y=1):\n    return f'{x!r:>{y}}', {**x}, u'a'\n"
    assert code_hash(source) == "90d3a53483752716388545af71b93817"


# -- the environment -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"torch": "2.11.0+cu130"}, [("torch", "2.13.0+cu130", "2.11.0+cu130")]),
        ({"torch": "2.13.0+cu128"}, []),
        ({"gpu": "NVIDIA A100"}, [("GPU", "NVIDIA H200", "NVIDIA A100")]),
        ({"cuda": "12.8"}, [("CUDA", "13.0", "12.8")]),
        ({"triton": None}, [("Triton", "3.7.0", None)]),
        ({"device": "cpu"}, [("device", "cuda", "cpu")]),
        ({"python": "3.12.1", "cores": 2}, []),
    ],
)
def test_environments(net: Any, change: Any, expected: list[Decisive]) -> None:
    recipe = recipe_of(net, environment=GPU)
    here = environment_of({**GPU, **change})
    assert decisive(recipe, net, here) == expected
    for each in differences(recipe, net, here):
        assert all(str(part or "") in str(each) for part in (each.recipe, each.here))
    more = [str(each) for each in differences(recipe, net, here) if not each.decisive]
    assert len(more) == len(change) - len(expected)


# -- adopted ---------------------------------------------------------------------------


def test_parts_that_are_not_there(net: Any) -> None:
    for paths, why in [
        (("blocks.0", "blocks.1"), None),
        (("blocks.0", "blocks.7"), "'blocks.7'"),
    ]:
        plan = Plan((Site("MODEL.blocks", "Block", paths),))
        recipe = dataclasses.replace(recipe_of(net), plan=plan)
        found = recipe_source(recipe).adopted(net).why_not
        assert found is None if why is None else why in str(found)
    for name, why in [("core:blocks.0", None), ("core:encode", "'encode'")]:
        recipe = dataclasses.replace(recipe_of(net), strategy=parse(name))
        found = recipe_source(recipe).adopted(net).why_not
        assert found is None if why is None else why in str(found)


def test_model_that_is_still_to_be_moved(net: Any) -> None:
    moved = {**environment_here(net), "device": "cuda"}
    assert recipe_source(recipe_of(net, environment=moved)).adopted(net).movable
    other = {**moved, "torch": "1.9.0"}
    assert not recipe_source(recipe_of(net, environment=other)).adopted(net).movable
