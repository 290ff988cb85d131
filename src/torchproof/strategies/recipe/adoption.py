"""Decides whether a recipe fits a model; `RecipeSource.adopted` never raises.

A path that cannot be read is a mistake in the program, and `recipe_source` raises at
once. An invalid file, or another torch, GPU or model than in the recipe, depends on the
machine: the reason is reported, and the model runs eager.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchproof.records import JsonObject, UserError, one_line
from torchproof.strategies.recipe import InvalidRecipe, Recipe, load
from torchproof.strategies.recipe.matching import differences
from torchproof.strategies.strategy import BLOCKS

TUNE_HINT = "torchproof tune makes a recipe for this machine"


@dataclass(frozen=True)
class Adoption:
    """Whether a recipe is followed for one model: yes, unless `why_not` has a reason.

    `differences` lists those that do not prevent it. `movable` means that only the
    device differs, and the model may still be moved there.
    """

    why_not: str | None = None
    differences: tuple[str, ...] = ()
    movable: bool = False


@dataclass(frozen=True)
class RecipeSource:
    """A recipe that the user passed: a file, or a `Recipe` object."""

    recipe: Recipe | None
    path: str | None = None
    damage: str | None = None  # why the file is not a recipe

    @property
    def name(self) -> str:
        return "the recipe" if self.path is None else self.path

    def adopted(self, model: Any) -> Adoption:
        """Compares the recipe with the model and with this process."""
        if self.recipe is None:
            return Adoption(self.damage)
        try:
            every = differences(self.recipe, model)
            decisive = [each for each in every if each.decisive]
            missing = [] if decisive else [*_missing(self.recipe, model)]
        except Exception as error:  # from the model's own methods
            why = one_line(f"{type(error).__name__}: {error}", 200)
            return Adoption(f"the model cannot be compared with it: {why}")
        others = [one_line(str(each)) for each in every if not each.decisive]
        if unknown := ", ".join(self.recipe.other):
            others.append(one_line(f"this torchproof ignores unknown keys: {unknown}"))
        why_not = one_line("; ".join([*map(str, decisive), *missing])) or None
        movable = bool(decisive) and {each.what for each in decisive} == {"device"}
        return Adoption(why_not, tuple(others), movable)

    def to_json(self, adoption: Adoption) -> JsonObject:
        recipe = self.recipe
        return {
            "path": self.path,
            "run": None if recipe is None else recipe.run,
            "strategy": None if recipe is None else recipe.strategy.name,
            "followed": None if adoption.movable else adoption.why_not is None,
            "why_not": adoption.why_not,
            "differs": [*adoption.differences],
        }


def recipe_source(recipe: Any) -> RecipeSource:
    """Takes a path or a `Recipe`; raises a `UserError` if the path cannot be read."""
    if isinstance(recipe, Recipe):
        return RecipeSource(recipe)
    if not isinstance(recipe, str | os.PathLike):
        kind = type(recipe).__name__
        raise UserError(f"recipe: give the path of a file or a Recipe, not a {kind}")
    path = os.fsdecode(recipe)
    try:
        return RecipeSource(load(path), path)
    except InvalidRecipe as error:
        return RecipeSource(None, path, error.why)  # messages about it name the path


def _missing(recipe: Recipe, model: Any) -> Iterator[str]:
    """What the strategy needs and the model does not have."""
    parts = dict(model.named_modules()) if hasattr(model, "named_modules") else None
    strategy = recipe.strategy
    if parts is None and strategy.form in (*BLOCKS, "core"):
        yield f"{strategy.name} needs a module"
        return
    if problem := recipe.plan.path_problem():
        yield problem
        return
    for region in recipe.plan.regions:
        for path in region.paths:
            if path not in (parts or {}):
                yield f"the model has no submodule {path!r}, a region of the recipe"
                return
    if strategy.form == "core" and strategy.method == "forward":
        yield "core:forward is the whole model: use strategy full"
    elif strategy.form == "core" and not _has_method(model, strategy.method):
        yield f"the model has no method {strategy.method!r}"


def _has_method(model: Any, path: str | None) -> bool:
    for name in (path or "").split("."):
        parts = getattr(model, "_modules", {})
        model = parts.get(name) if name in parts else getattr(model, name, None)
    return callable(model)
