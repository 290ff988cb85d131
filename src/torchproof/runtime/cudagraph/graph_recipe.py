"""Turns a recipe into the options of a graphed step.

Takes the step and the recipe, returns `GraphOptions`. If the recipe does not fit this
machine or model, the options say why the step is not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchproof.records import UserError
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.strategies import (
    TUNE_HINT,
    Recipe,
    RecipeSource,
    Strategy,
    parse,
    recipe_source,
)


@dataclass(frozen=True)
class GraphOptions:
    """How a step is compiled and recorded; `refused` is why it is not recorded."""

    strategy: Strategy
    train: bool
    padding: Mapping[str, Any] = field(default_factory=dict, hash=False)
    refused: Stop | None = None


def options_from_recipe(
    step: Callable[..., Any],
    recipe: Any,
    train: bool | None,
    other_options: Mapping[str, Any],
) -> GraphOptions:
    """The options of a recipe; without a graph if the recipe does not apply.

    A damaged recipe does not say whether the step has a backward, so the caller must
    pass `train`.
    """
    if names := ", ".join(
        name for name, value in other_options.items() if value is not None
    ):
        raise UserError(
            f"recipe and {names}: the recipe already says how to compile; pass only one"
        )
    source = recipe_source(recipe)
    if source.recipe is None:
        if train is None:
            raise UserError(f"{source.path}: {source.damage}")
        return _without_graph(source, train, source.damage)
    measured = source.recipe.train
    if train not in (None, measured):
        name = source.name
        raise UserError(f"train={train}, but {name} was measured with train={measured}")
    if os.environ.get("TORCHPROOF_DISABLE") == "1":
        off = Stop("recipe", "torchproof is disabled by TORCHPROOF_DISABLE=1")
        return GraphOptions(parse("eager"), measured, refused=off)
    if why := source.adopted(step).why_not:
        return _without_graph(source, measured, why)
    return _from_recipe(step, source, source.recipe)


def _without_graph(source: RecipeSource, train: bool, why: str | None) -> GraphOptions:
    reason = f"{source.name} is not used: {why}; {TUNE_HINT}"
    return GraphOptions(parse("eager"), train, refused=Stop("recipe", reason))


def _from_recipe(step: Any, source: RecipeSource, recipe: Recipe) -> GraphOptions:
    strategy = recipe.strategy
    refused = None
    if not strategy.graph:
        reason = f"{source.name} chose {strategy.name}, which has no graph"
        refused = Stop("recipe", reason)
    inner = strategy.in_graph
    if inner.form == "core":
        compile_method(step, inner)
        inner = parse("eager")
    return GraphOptions(
        strategy=inner,
        train=recipe.train,
        padding=_tuples(recipe.buckets or {}),
        refused=refused,
    )


def _tuples(value: Any) -> Any:
    """Turns the lists of a recipe file into the tuples of `torchproof.graph`."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def compile_method(model: nn.Module, strategy: Strategy) -> None:
    """Compiles the strategy's method in place."""
    holder, _, name = (strategy.method or "").rpartition(".")
    owner = model.get_submodule(holder)
    method = getattr(owner, name)
    if isinstance(method, nn.Module):
        owner, name, method = method, "forward", method.forward
    setattr(owner, name, torch.compile(method, **strategy.arguments))
