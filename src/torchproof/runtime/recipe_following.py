"""What a recipe asks of an entry: the strategy, its blocks, and sizes to mark."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import UserError
from torchproof.runtime.method_replacement import MethodReplacement, why_eager
from torchproof.strategies import Given, Plan, Strategy, Varying, parse
from torchproof.torch_private import mark_weakly_dynamic

_NOT_WAITING = (
    "wait=False: nothing is replayed, since recording takes the caller's time"
)
_WHOLE_STEP = (
    "the recipe records loss and backward with the model, which a forward alone cannot"
    " be: torchproof.graph(model, recipe={name}) gives the whole step"
)


def assert_alone(settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    beside = [*(["strategy"] * (settings["strategy"] is not None)), *arguments]
    if beside:
        raise UserError(
            f"recipe and {', '.join(beside)}: the recipe says how to compile; give one"
            " or the other"
        )


def strategy_of(
    source: Given, model: nn.Module | None, *, wait: bool
) -> tuple[Strategy, str]:
    """The recipe's strategy as a forward can follow it, and why it is in force."""
    if why := why_eager(model):
        return parse("eager"), why
    recipe = source.recipe
    if recipe is None:
        return parse("eager"), f"{source.name} is damaged"
    strategy = recipe.strategy
    if graph_left_out(source, wait=wait):
        strategy = strategy.in_graph
    # Nothing here makes a graph break an error.
    arguments = {k: v for k, v in strategy.arguments.items() if k != "fullgraph"}
    name = "the recipe" if source.path is None else f"recipe {source.path}"
    return dataclasses.replace(strategy, arguments=arguments), name


def graph_left_out(source: Given, *, wait: bool) -> str | None:
    """Why a recipe that has a graph is followed without it."""
    recipe = source.recipe
    if recipe is None or not recipe.strategy.graph:
        return None
    if recipe.train:
        name = "..." if source.path is None else repr(source.path)
        return _WHOLE_STEP.format(name=name)
    return None if wait else _NOT_WAITING


def plan_of(source: Given | None) -> Plan:
    return Plan() if source is None or source.recipe is None else source.recipe.plan


def measured_training(source: Given | None) -> bool:
    return source is not None and source.recipe is not None and source.recipe.train


def whole_varying(plan: Plan) -> Varying:
    """The sizes to mark where one thing is compiled: the model, or one method."""
    return next((site.varying for site in plan.sites if not site.paths), {})


def marked(compiled: Callable[..., Any], varying: Varying) -> Callable[..., Any]:
    """Marks the sizes that vary, right before each entry into compiled code."""
    if not varying:
        return compiled
    ways = [(first, rest, sizes) for (first, *rest), sizes in varying.items()]

    def call(*args: Any, **kwargs: Any) -> Any:
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for first, rest, sizes in ways:
            value = _at(given.get(first), rest)
            if isinstance(value, Tensor):
                for size in sizes:
                    if size < value.dim():
                        mark_weakly_dynamic(value, size)
        return compiled(*args, **kwargs)

    return call


def mark_regions(parts: list[MethodReplacement], *, train: bool) -> None:
    """Each is a region of the graph around it, whose code serves all that are alike.

    The block is an argument of the region: of methods torch 2.13 takes the weights of
    the first block for all. With gradients, Inductor of torch 2.13 can lose those of
    the first block: regions are used there only if they were measured, with `train`.
    """
    as_region = functools.cache(torch.compiler.nested_compile_region)
    for part in parts:
        part.rebuild = functools.partial(_mark_region, part, as_region, train=train)
        part.rebuild()


def _mark_region(
    part: MethodReplacement, as_region: Callable[..., Any], *, train: bool
) -> None:
    part.run = part.eager
    # Not a forward of somebody else's, for this one block, nor one without a block.
    if isinstance(part.run, MethodType) and part.run.__self__ is part.owner:
        region = functools.partial(as_region(part.run.__func__), part.owner)
        part.run = region if train else _without_gradients(region, part.eager)


def _without_gradients(
    region: Callable[..., Any], plain: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        inner = plain if torch.is_grad_enabled() else region
        return inner(*args, **kwargs)

    return call


def _at(value: Any, steps: list[Any]) -> Any:
    """What is there, or None: a call may be of another kind than those measured."""
    try:
        for step in steps:
            value = value[step]
    except (LookupError, TypeError):
        return None
    return value
