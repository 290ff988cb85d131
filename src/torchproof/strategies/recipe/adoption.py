"""Whether a recipe is followed for a model: in production nothing here raises.

A path that cannot be read is a mistake in the program, and raises at once. A damaged
file, another torch, another GPU or another model are facts of the place where it runs:
they are told, and the model runs eager.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchproof.records import UserError, one_line
from torchproof.strategies.recipe import InvalidRecipe, Recipe, load
from torchproof.strategies.recipe.matching import differences
from torchproof.strategies.strategy import BLOCKS

TUNE_HINT = "torchproof tune makes one for here"


@dataclass(frozen=True)
class Adoption:
    """What came of a recipe for one model; followed unless `why_not` says otherwise.

    `told` has what differs and does not matter that much. `movable` says that only the
    device is another, and the model may still be moved there.
    """

    why_not: str | None = None
    told: tuple[str, ...] = ()
    movable: bool = False


@dataclass(frozen=True)
class RecipeSource:
    """A recipe as it was handed over: a file, or the record itself."""

    recipe: Recipe | None
    path: str | None = None
    damage: str | None = None  # why there is no recipe in the file

    @property
    def name(self) -> str:
        return "the recipe" if self.path is None else self.path

    def adopted(self, model: Any) -> Adoption:
        """Looks at the model as it is, and at this process."""
        if self.recipe is None:
            return Adoption(self.damage)
        try:
            found = differences(self.recipe, model)
            decisive = [each for each in found if each.decisive]
            missing = [] if decisive else [*_missing(self.recipe, model)]
        except Exception as error:  # of a model that answers in ways of its own
            why = one_line(f"{type(error).__name__}: {error}", 200)
            return Adoption(f"the model cannot be compared with it: {why}")
        told = tuple(one_line(str(each)) for each in found if not each.decisive)
        if unknown := ", ".join(self.recipe.other):
            left_out = f"this torchproof does not know, and leaves out: {unknown}"
            told += (one_line(left_out),)
        why_not = one_line("; ".join([*map(str, decisive), *missing])) or None
        movable = bool(decisive) and {each.what for each in decisive} == {"device"}
        return Adoption(why_not, told, movable)

    def to_json(self, adoption: Adoption) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "path": self.path,
            "run": None if recipe is None else recipe.run,
            "strategy": None if recipe is None else recipe.strategy.name,
            "followed": None if adoption.movable else adoption.why_not is None,
            "why_not": adoption.why_not,
            "differs": [*adoption.told],
        }


def recipe_source(recipe: Any) -> RecipeSource:
    """A path or a `Recipe`; a `UserError` if there is nothing to read at the path."""
    if isinstance(recipe, Recipe):
        return RecipeSource(recipe)
    if not isinstance(recipe, str | os.PathLike):
        kind = type(recipe).__name__
        raise UserError(f"recipe: give the path of a file or a Recipe, not a {kind}")
    path = os.fsdecode(recipe)
    try:
        return RecipeSource(load(path), path)
    except InvalidRecipe as error:
        # The path is named wherever this is told.
        return RecipeSource(None, path, str(error).removeprefix(f"{path}: "))


def _missing(recipe: Recipe, model: Any) -> Iterator[str]:
    """What the strategy needs of the model and does not find there."""
    parts = dict(model.named_modules()) if hasattr(model, "named_modules") else None
    strategy = recipe.strategy
    if parts is None and strategy.form in (*BLOCKS, "core"):
        yield f"{strategy.name} needs a module"
        return
    if wrong := recipe.plan.path_problem():
        yield wrong
        return
    for region in recipe.plan.regions:
        for path in region.paths:
            if path not in (parts or {}):
                yield f"the model has no part {path!r}, which is a region"
                return
    if strategy.form == "core" and strategy.method == "forward":
        yield "its forward is the whole model: that is full"
    elif strategy.form == "core" and not _has_method(model, strategy.method):
        yield f"the model has no method {strategy.method!r}"


def _has_method(model: Any, path: str | None) -> bool:
    for name in (path or "").split("."):
        parts = getattr(model, "_modules", {})
        model = parts.get(name) if name in parts else getattr(model, name, None)
    return callable(model)
