"""Applies a recipe to a compiled forward: its strategy, blocks and dynamic sizes."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import Keywords, TorchConfig, UserError
from torchproof.runtime.method_replacement import MethodReplacement, why_eager
from torchproof.strategies import Plan, RecipeSource, Strategy, Varying, parse
from torchproof.torch_private import mark_weakly_dynamic, set_config

_NOT_DEFERRED = (
    "wait=False: no CUDA graph is used, because {why}, which cannot be compiled while"
    " an uncompiled recording answers"
)
_WHOLE_STEP = (
    "the recipe records forward, loss and backward in one CUDA graph, and"
    " torchproof.compile compiles the forward only: use"
    " torchproof.graph(model, recipe={name}) for the whole step"
)


def assert_alone(settings: TorchConfig, arguments: Keywords) -> None:
    others = list(arguments)
    if settings["strategy"] is not None:
        others.insert(0, "strategy")
    if others:
        raise UserError(
            f"recipe and {', '.join(others)}: the recipe already says how to compile;"
            " give one or the other"
        )


def strategy_of(
    source: RecipeSource, model: nn.Module | None, *, wait: bool
) -> tuple[Strategy, str]:
    """The recipe's strategy as a forward can run it, and where it comes from."""
    if why := why_eager(model):
        return parse("eager"), why
    recipe = source.recipe
    if recipe is None:
        return parse("eager"), f"{source.name} is not a valid recipe"
    strategy = recipe.strategy
    if graph_left_out(source, wait=wait):
        strategy = strategy.in_graph
    # In production a graph break is not an error.
    arguments = {k: v for k, v in strategy.arguments.items() if k != "fullgraph"}
    name = "the recipe" if source.path is None else f"recipe {source.path}"
    return dataclasses.replace(strategy, arguments=arguments), name


def graph_left_out(source: RecipeSource, *, wait: bool) -> str | None:
    """Why the CUDA graph of a recipe is not used, or None."""
    recipe = source.recipe
    if recipe is None or not recipe.strategy.graph:
        return None
    if recipe.train:
        name = "..." if source.path is None else repr(source.path)
        return _WHOLE_STEP.format(name=name)
    why = None if wait else _not_deferrable(recipe.strategy)
    return None if why is None else _NOT_DEFERRED.format(why=why)


def _not_deferrable(strategy: Strategy) -> str | None:
    """What of a strategy cannot replace a recording later, or None."""
    if strategy.form == "core":
        return f"the recipe compiles one method ({strategy.method})"
    backend = strategy.arguments.get("backend", "inductor")
    return None if backend == "inductor" else f"the recipe has the backend {backend}"


def apply_settings(source: RecipeSource) -> str | None:
    """Applies the recipe's settings of Dynamo to this process; why not, or None.

    They hold for everything that is compiled in this process from now on.
    """
    settings = {} if source.recipe is None else source.recipe.dynamo
    try:
        values = {
            name: [*map(_function, value)] if isinstance(value, list) else [value]
            for name, value in settings.items()
        }
        for name, several in values.items():
            for value in several:
                set_config("dynamo", name, value)
    except UserError as error:
        return str(error)
    return None


def _function(name: str) -> Any:
    """A function by its name; only in modules that the program has imported."""
    words = name.split(".")
    for cut in range(len(words) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(words[:cut]))
        for word in words[cut:]:
            value = getattr(value, word, None)
        if callable(value):
            return value
    raise UserError(f"there is no function {name} in the modules that are imported")


def plan_of(source: RecipeSource | None) -> Plan:
    return Plan() if source is None or source.recipe is None else source.recipe.plan


def measured_training(source: RecipeSource | None) -> bool:
    return source is not None and source.recipe is not None and source.recipe.train


def whole_varying(plan: Plan) -> Varying:
    """The sizes to mark if the model, or one method, is compiled as a whole."""
    return next((site.varying for site in plan.sites if not site.paths), {})


def marked(compiled: Callable[..., Any], varying: Varying) -> Callable[..., Any]:
    """Marks the sizes that vary as dynamic before each call of compiled code."""
    if not varying:
        return compiled
    paths = [(first, rest, sizes) for (first, *rest), sizes in varying.items()]

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for first, rest, sizes in paths:
            value = _at(arguments.get(first), rest)
            if isinstance(value, Tensor):
                for size in sizes:
                    if size < value.dim():
                        mark_weakly_dynamic(value, size)
        return compiled(*args, **kwargs)

    return call


def mark_regions(parts: list[MethodReplacement], *, train: bool) -> None:
    """Makes each block a region of the surrounding graph; equal blocks share code.

    The block is an argument of the region: with bound methods, torch 2.13 uses the
    weights of the first block for all. With gradients, Inductor of torch 2.13 can lose
    those of the first block. So calls with gradients use regions only with `train`, if
    the recipe was measured in training.
    """
    as_region = functools.cache(torch.compiler.nested_compile_region)
    for part in parts:
        part.rebuild = functools.partial(_mark_region, part, as_region, train=train)
        part.rebuild()


def _mark_region(
    part: MethodReplacement, as_region: Callable[..., Any], *, train: bool
) -> None:
    part.run = part.eager
    # Only for a forward of the block's own class, bound to the block itself.
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
    """The value at a path, or None: a call may differ from those measured."""
    try:
        for step in steps:
            value = value[step]
    except (LookupError, TypeError):
        return None
    return value
