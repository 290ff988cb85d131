"""A recipe for a step that is to be recorded: what it says, if that holds here."""

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
    """How a step is compiled and recorded; with `refused`, why it is not recorded."""

    strategy: Strategy
    train: bool
    padding: Mapping[str, Any] = field(default_factory=dict, hash=False)
    refused: Stop | None = None


def options_from_recipe(
    step: Callable[..., Any],
    recipe: Any,
    train: bool | None,
    beside: Mapping[str, Any],
) -> GraphOptions:
    """What a recipe says for a step, which runs as it is where that does not hold.

    A damaged file does not say whether there is a backward: unless the caller does,
    no step can stand in for it.
    """
    if told := ", ".join(name for name, value in beside.items() if value is not None):
        raise UserError(f"recipe and {told}: the recipe says how to compile")
    source = recipe_source(recipe)
    if source.recipe is None:
        if train is None:
            raise UserError(f"{source.path}: {source.damage}")
        return _plain(source, train, source.damage)
    measured = source.recipe.train
    if train not in (None, measured):
        name = source.name
        raise UserError(f"train={train}: {name} was measured with train={measured}")
    if os.environ.get("TORCHPROOF_DISABLE") == "1":
        off = Stop("recipe", "torchproof is switched off by TORCHPROOF_DISABLE=1")
        return GraphOptions(parse("eager"), measured, refused=off)
    if why := source.adopted(step).why_not:
        return _plain(source, measured, why)
    return _followed(step, source, source.recipe)


def _plain(source: RecipeSource, train: bool, why: str | None) -> GraphOptions:
    words = f"{source.name} is not followed: {why}; {TUNE_HINT}"
    return GraphOptions(parse("eager"), train, refused=Stop("recipe", words))


def _followed(step: Any, source: RecipeSource, recipe: Recipe) -> GraphOptions:
    strategy, refused = recipe.strategy, None
    if not strategy.graph:
        words = f"{source.name} says {strategy.name}, without a graph"
        refused = Stop("recipe", words)
    inner = strategy.in_graph
    if inner.form == "core":
        compile_method(step, inner)
        inner = parse("eager")
    return GraphOptions(inner, recipe.train, _tuples(recipe.buckets or {}), refused)


def _tuples(value: Any) -> Any:
    """Files have lists where `torchproof.graph` takes tuples."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def compile_method(model: nn.Module, strategy: Strategy) -> None:
    """In place, as the lines of the strategy do it."""
    holder, _, name = (strategy.method or "").rpartition(".")
    owner = model.get_submodule(holder)
    method = getattr(owner, name)
    if isinstance(method, nn.Module):
        owner, name, method = method, "forward", method.forward
    setattr(owner, name, torch.compile(method, **strategy.arguments))
