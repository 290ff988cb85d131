"""Builds a graphed step from the arguments of `torchproof.graph`.

Checks the arguments, reads the recipe, and decides what is recorded and how it is
compiled.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchproof import strategies
from torchproof.records import Keywords, UserError
from torchproof.runtime.cudagraph import graph
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.runtime.cudagraph.graphed_step import Graphed
from torchproof.runtime.cudagraph.padding import Padder
from torchproof.runtime.cudagraph.snapshots import Options
from torchproof.runtime.recipe_following import apply_settings
from torchproof.strategies import (
    TUNE_HINT,
    Strategy,
    compile_arguments,
    invalid_argument,
    recipe_source,
    source_lines,
)
from torchproof.torch_private import early_start

BEST = "best"  # regional first, then full if that is faster
# What each argument may be, besides None.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "example": (
        lambda value: isinstance(value, Mapping | tuple | list),
        "a tuple of arguments or a dict of keywords",
    ),
    "train": (lambda value: isinstance(value, bool), "True, False or None"),
    "strategy": (lambda value: isinstance(value, str), "its name"),
    "wait": (lambda value: isinstance(value, bool), "True or False"),
    "outputs": (lambda value: value in ("copies", "buffers"), "'copies' or 'buffers'"),
    "checks": (
        lambda value: value in ("default", "arguments"),
        "'default' or 'arguments'",
    ),
    "audit": (
        lambda value: isinstance(value, int) and value >= 1,
        "a number of calls, at least 1",
    ),
    "depends": (callable, "a function without arguments"),
    "pool": (lambda value: isinstance(value, Graphed), "a graphed step"),
}


def build(step: Callable[..., Any], compile_with: Keywords, **given: Any) -> Graphed:
    """The graphed step for the arguments of `graph`, those of torch.compile apart."""
    if not callable(step):
        raise UserError(f"graph: {type(step).__name__} is not callable")
    for name, (is_right, expected) in _EXPECTED.items():
        if given[name] is not None and not is_right(given[name]):
            raise invalid_argument(name, given[name], expected)
    if given["audit"] is not None and given["checks"] != "arguments":
        raise UserError("audit needs checks='arguments': all else is always checked")
    padding = {name: given[name] for name in ("pad", "buckets")}
    if given["recipe"] is None:
        first, later = _strategies(given["strategy"], compile_with, wait=given["wait"])
        options = Options(first, later, bool(given["train"]))
    else:
        options, buckets = _from_recipe(step, given, compile_with)
        padding.update(buckets)
        if not given["wait"]:
            options = compiled_later(options)
    options = replace(
        options,
        padder=Padder.parse(step, padding["pad"], padding["buckets"]),
        pool=None if given["pool"] is None else given["pool"].pool,
        buffers=given["outputs"] == "buffers",
        only_arguments=given["checks"] == "arguments",
        audit=given["audit"],
        depends=given["depends"],
    )
    if options.strategy.compiles and not options.refused:
        early_start.begin()
    return Graphed(step, options)


def parse_strategy(name: str, arguments: Keywords) -> Strategy:
    """The strategy of a name, with additional arguments for torch.compile."""
    for each in arguments:
        if each == "backend":
            raise UserError(
                "torchproof.graph compiles with Inductor; for another backend, pass"
                f" torch.compile(step, backend={arguments[each]!r})"
            )
        if each not in source_lines.RECORDED_ARGUMENTS:
            names = (
                *source_lines.RECORDED_ARGUMENTS,
                *inspect.signature(graph).parameters,
            )
            near = difflib.get_close_matches(each, names, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise UserError(f"torchproof.graph has no argument {each!r}{hint}")
    compile_arguments.check(arguments)
    strategy = strategies.parse(name)
    if strategy.marks:
        raise UserError(
            f"strategy {name!r}: torchproof.graph records each shape separately, so it"
            " cannot mark sizes as dynamic"
        )
    return strategies.with_arguments(strategy, **arguments) if arguments else strategy


def _strategies(
    name: str | None, arguments: Keywords, *, wait: bool
) -> tuple[Strategy, tuple[Strategy, ...]]:
    """The strategy of the first recordings, and those that replace them later."""
    eager = strategies.parse("eager")
    if wait:
        if name == BEST:
            raise UserError(
                f"strategy {BEST!r} needs wait=False: it times the stages while calls"
                " are answered"
            )
        return parse_strategy(name or eager.name, arguments), ()
    names = ("regional", "full") if name in (None, BEST) else (name,)
    later = (parse_strategy(each, arguments) for each in names)
    return eager, tuple(each for each in later if each.compiles)


def compiled_later(options: Options) -> Options:
    """The same strategy in the end, but nobody waits for the compiler."""
    if not options.strategy.compiles:
        return options
    return replace(
        options, strategy=strategies.parse("eager"), later=(options.strategy,)
    )


# -- recipes ---------------------------------------------------------------------------


def _from_recipe(
    step: Callable[..., Any], given: Keywords, compile_with: Keywords
) -> tuple[Options, Keywords]:
    """The options of a recipe, and its buckets; without a graph if it does not apply.

    A damaged recipe does not say whether the step has a backward, so the caller must
    pass `train`.
    """
    others = {"strategy": given["strategy"], **compile_with}
    if names := ", ".join(name for name, value in others.items() if value is not None):
        raise UserError(
            f"recipe and {names}: the recipe already says how to compile; pass only one"
        )
    train, source = given["train"], recipe_source(given["recipe"])
    recipe, why = source.recipe, source.damage
    if recipe is None and train is None:
        raise UserError(f"{source.path}: {why}")
    if recipe is not None:
        if train not in (None, recipe.train):
            raise UserError(
                f"train={train}, but {source.name} was measured with"
                f" train={recipe.train}"
            )
        train = recipe.train
        if os.environ.get("TORCHPROOF_DISABLE") == "1":
            why = "torchproof is disabled by TORCHPROOF_DISABLE=1"
            return Options(train=train, refused=Stop("recipe", why)), {}
        why = source.adopted(step).why_not or apply_settings(source)
    if recipe is None or why:
        reason = f"{source.name} is not used: {why}; {TUNE_HINT}"
        return Options(train=train, refused=Stop("recipe", reason)), {}
    strategy, refused = recipe.strategy.in_graph, None
    if not recipe.strategy.graph:
        reason = f"{source.name} chose {recipe.strategy.name}, which has no graph"
        refused = Stop("recipe", reason)
    if strategy.form == "core":
        _compile_method(step, strategy)
        strategy = strategies.parse("eager")
    buckets = _tuples(recipe.buckets or {})
    if "sizes" in buckets:
        buckets["buckets"] = buckets.pop("sizes")
    return Options(strategy, train=train, refused=refused), buckets


def _tuples(value: Any) -> Any:
    """Turns the lists of a recipe file into the tuples of `torchproof.graph`."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _compile_method(model: Any, strategy: Strategy) -> None:
    """Compiles the strategy's method in place."""
    holder, _, name = (strategy.method or "").rpartition(".")
    owner = model.get_submodule(holder)
    method = getattr(owner, name)
    if isinstance(method, nn.Module):
        owner, name, method = method, "forward", method.forward
    setattr(owner, name, torch.compile(method, **strategy.arguments))
