"""A recipe as a file: what is written is what is read, and bad files say where."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.records.run import UserError
from torchproof.strategies.plan import Plan, Site
from torchproof.strategies.recipe import InvalidRecipe, Recipe, load, loads
from torchproof.strategies.strategy import parse, with_arguments

# -- any recipe ------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCALARS = (
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.sampled_from(["'''", '"""', "\\", "a\nb'", "\x00\x7f\r\n", "#", "\u2028", "]"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=3)
WAYS = st.lists(TEXTS | st.integers(0, 9), min_size=1, max_size=3).map(tuple)
SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
STEPS = TEXTS.filter(lambda text: text and "." not in text)
PATHS = st.lists(STEPS, min_size=1, max_size=12, unique=True).map(tuple)
OPTIONAL = TEXTS.filter(bool) | st.none()


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    marks = st.dictionaries(WAYS, SIZES, max_size=2)
    places = draw(st.lists(TEXTS, unique=True, max_size=3))
    sites = [Site(place, draw(TEXTS), draw(PATHS), draw(marks)) for place in places[1:]]
    sites += [Site(place, varying=draw(marks)) for place in places[:1]]
    return Plan(tuple(sites), draw(OPTIONAL))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    names = ("full", "regional:marks", "core:encode:max-autotune", "full+graph")
    strategy = parse(draw(st.sampled_from(names)))
    if draw(st.booleans()):
        options = draw(st.dictionaries(TEXTS, SCALARS, min_size=1, max_size=3))
        arguments = {"options": options, "fullgraph": draw(st.booleans())}
        strategy = dataclasses.replace(strategy, arguments=arguments)
    return Recipe(
        strategy,
        draw(plans().filter(lambda plan: plan.path_problem() is None)),
        draw(st.booleans()),
        *(draw(OPTIONAL) for _ in range(3)),
        *(draw(TABLES) for _ in range(4)),
        {"class": draw(TEXTS), "code": draw(st.dictionaries(TEXTS, TEXTS)), "size": 1},
        draw(TEXTS),
        draw(
            st.none() | st.just({"pad": {"0": ["batch", None]}, "sizes": [[8], [16]]})
        ),
        other={f"later {key}": value for key, value in draw(TABLES).items()},
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipes())
def test_recipe_round_trip(recipe: Recipe) -> None:
    assert loads(recipe.dumps()) == recipe
    assert json.loads(json.dumps(recipe.to_json()))["lines"] == recipe.lines


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipes(), st.data())
def test_truncated_file_is_damaged_or_a_recipe(recipe: Recipe, data: Any) -> None:
    text = recipe.dumps()
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        loads(cut)
    except InvalidRecipe as error:
        assert "\n" not in str(error)


# -- for people ------------------------------------------------------------------------


def whole() -> Recipe:
    site = Site("MODEL.blocks", "Block", ("blocks.0", "blocks.1"), {("mask",): (1,)})
    return Recipe(
        with_arguments(parse("regional:marks"), options={"max_autotune": True}),
        Plan((site,), "compiled one by one: 2 x Block"),
        target="workload:nanovlm",
        run="20261115-0102-nanovlm",
        objective="step",
        gain={"value": 1.62, "low": 1.58, "high": 1.66},
        measured={"eager_ms": 3.1, "step_ms": 1.9, "first_call_s": 12.5},
        numerics={"verdict": "rounding", "max_rel_error": 1e-6},
        environment={"torch": "2.13.0", "device": "cpu"},
        model={"class": "Net", "parameters": 12, "structure": "ab", "code": {"m": "c"}},
        lines="import torch\n\nfor block in model.blocks:\n    block.compile()\n",
    )


def test_file_is_written_for_people() -> None:
    text = whole().dumps()
    assert 'model = torchproof.compile(model, recipe="torchproof.toml")' in text
    assert "\nfor block in model.blocks:\n    block.compile()\n" in text
    assert 'paths = ["blocks.0", "blocks.1"]' in text
    assert "[compile.options]\nmax_autotune = true" in text
    assert '[[marks]]\nplace = "MODEL.blocks"\nargument = ["mask"]\nsizes = [1]' in text
    assert loads(text) == whole()


TOP = 'schema = 1\nstrategy = "full"\n'
REGION = '[[regions]]\nplace = "MODEL.blocks"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "schema"),
        ("a = =", "line 1, column 5"),
        ('schema = 99\nstrategy = "full"', "schema 99"),
        ('schema = "1"', 'schema "1"'),
        ("schema = true", "schema"),
        ("schema = 1", "strategy"),
        ("schema = 1\nstrategy = 3", "strategy 3"),
        ('schema = 1\nstrategy = "ful"', "'ful' full?"),
        (TOP + 'train = "yes"', "train true false"),
        (TOP + "gain = 1.5", "gain 1.5"),
        (TOP + "lines = 1", "lines 1"),
        (TOP + "[compile]\ndynmic = true", "'dynmic' dynamic?"),
        (TOP + "[compile]\ndynamic = 1", "compile.dynamic true false"),
        (TOP + '[compile]\nmode = "a"\noptions = {}', "mode options"),
        ('schema = 1\nstrategy = "eager"\n[compile]\nmode = "x"', "eager arguments"),
        (
            'schema = 1\nstrategy = "full+graph"\n[compile]\nmode = "reduce-overhead"',
            "full+graph CUDA",
        ),
        (TOP + "regions = 3", "regions list 3"),
        (TOP + "regions = [3]", "regions[0]"),
        (TOP + REGION, "regions[0].paths"),
        (TOP + REGION + "paths = []", "regions[0].paths"),
        (TOP + REGION + "paths = [1]", "regions[0].paths[0] 1"),
        (TOP + REGION + 'path = ["a"]', "'path' paths?"),
        (
            TOP + '[[marks]]\nplace = "x"\nargument = [0]\nsizes = [1]',
            "marks: 'x'",
        ),
        (
            TOP + '[[marks]]\nplace = "x"\nargument = []\nsizes = [1]',
            "marks[0].argument",
        ),
        (
            TOP + '[[marks]]\nplace = "x"\nargument = [0]\nsizes = [-1]',
            "marks[0].sizes",
        ),
        (TOP + "[buckets]\nsizes = [1]", "buckets.pad"),
        (TOP + "[model]\nparameters = 'x'", 'model.parameters "x"'),
        (TOP + "[model]\ncode = 3", "model.code 3"),
        (TOP + "[model]\ncode = {a = 1}", "model.code.a 1"),
        ("x = " + "[" * 100_000, "nested"),
    ],
)
def test_invalid_recipe_is_an_error_of_one_line(text: str, expected: str) -> None:
    with pytest.raises(InvalidRecipe) as caught:
        loads(text, "there.toml")
    assert all(token in str(caught.value) for token in expected.split())
    assert str(caught.value).startswith("there.toml: ")
    assert "\n" not in str(caught.value)


# -- on disk ---------------------------------------------------------------------------


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = whole().write(tmp_path / "torchproof.toml")
    before = path.read_text()
    with pytest.raises(UserError, match=f"{path} exists"):
        Recipe(parse("full")).write(path)
    assert path.read_text() == before
    Recipe(parse("full")).write(path, overwrite=True)
    assert load(path) == Recipe(parse("full"))
    assert os.listdir(tmp_path) == ["torchproof.toml"]


def test_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = whole().write(tmp_path / "torchproof.toml")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=os.strerror(errno.ENOSPC)):
        Recipe(parse("full")).write(path, overwrite=True)
    assert load(path) == whole()
    assert os.listdir(tmp_path) == ["torchproof.toml"]


def test_missing_file_is_not_an_invalid_recipe(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UserError) as caught:
            load(path)
        assert not isinstance(caught.value, InvalidRecipe)
        assert "torchproof tune" in str(caught.value)
    with pytest.raises(UserError, match=str(tmp_path / "none")):
        whole().write(tmp_path / "none" / "torchproof.toml")
