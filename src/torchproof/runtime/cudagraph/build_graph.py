"""Puts a graphed step together: what is recorded, and how it is compiled."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from torchproof import strategies
from torchproof.records import UserError
from torchproof.runtime.cudagraph import graph, preparation, recorded_step
from torchproof.runtime.cudagraph.capture import Pool
from torchproof.runtime.cudagraph.graph_recipe import GraphOptions, options_from_recipe
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.runtime.cudagraph.graphed_step import Graphed, Within
from torchproof.runtime.cudagraph.padder import Padder
from torchproof.runtime.cudagraph.preparation import Preparation
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.strategies import (
    Strategy,
    compile_arguments,
    invalid_argument,
    source_lines,
)


def check(step: Any, example: Any, **given: Any) -> None:
    """Raises a `UserError` for the first argument of `graph` that cannot be used."""
    if given["outputs"] not in ("copies", "buffers"):
        raise invalid_argument("outputs", given["outputs"], "'copies' or 'buffers'")
    if not callable(step):
        raise UserError(f"graph: {type(step).__name__} is not callable")
    kinds = {"train": (bool, "True, False or None"), "strategy": (str, "its name")}
    kinds |= {"pool": (Graphed, "a graphed step")}
    for name, (kind, wanted) in kinds.items():
        if given[name] is not None and not isinstance(given[name], kind):
            raise invalid_argument(name, given[name], wanted)
    if not isinstance(example, Mapping | tuple | list | None):
        raise invalid_argument(
            "example", example, "a tuple of arguments or a dict of keywords"
        )


def parse_strategy(name: str, arguments: Mapping[str, Any]) -> Strategy:
    """A strategy by its name, with further arguments for torch.compile."""
    for each in arguments:
        if each == "backend":
            raise UserError(
                "torchproof.graph compiles with Inductor; for another backend, give it"
                f" torch.compile(step, backend={arguments[each]!r})"
            )
        if each not in source_lines.RECORDED_ARGUMENTS:
            known = (
                *source_lines.RECORDED_ARGUMENTS,
                *inspect.signature(graph).parameters,
            )
            near = difflib.get_close_matches(each, known, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise UserError(f"torchproof.graph takes no argument {each!r}{hint}")
    compile_arguments.check(arguments)
    strategy = strategies.parse(name)
    if strategy.marks:
        raise UserError(
            f"strategy {name!r}: each shape is recorded on its own, there are no sizes"
            " to mark"
        )
    return strategies.with_arguments(strategy, **arguments) if arguments else strategy


def build(
    step: Callable[..., Any],
    asked: Mapping[str, Any],
    padding: Mapping[str, Any],
    *,
    pool: Graphed | None,
    buffers: bool,
) -> Graphed:
    """What `torchproof.graph` was asked for, by its arguments or by a recipe."""
    strategy, arguments = asked["strategy"], asked["arguments"]
    if asked["recipe"] is None:
        options = GraphOptions(
            parse_strategy(strategy or "eager", arguments), bool(asked["train"])
        )
    else:
        beside = {"strategy": strategy, **arguments}
        options = options_from_recipe(step, asked["recipe"], asked["train"], beside)
    return build_graphed(
        step,
        train=options.train,
        strategy=options.strategy,
        pool=pool,
        buffers=buffers,
        padder=Padder.parse(step, **{**padding, **options.padding}),
        refused=options.refused,
    )


def build_graphed(
    step: Callable[..., Any],
    *,
    train: bool,
    strategy: Strategy,
    pool: Graphed | None,
    buffers: bool,
    padder: Padder | None,
    within: Within = contextlib.nullcontext,
    refused: Stop | None = None,
) -> Graphed:
    if strategies.records_graphs(strategy.arguments):
        raise UserError(
            f"strategy {strategy.name!r}: this mode makes CUDA graphs of its own, and"
            " one cannot be recorded inside another; use max-autotune-no-cudagraphs"
        )
    inner, around = step, cast(preparation.Body, _as_it_is)
    if train:
        inner, around = recorded_step.with_loss(step), recorded_step.training
    elif isinstance(step, nn.Module):
        around = recorded_step.inference

    def prepare(state: StateSnapshot) -> Preparation:
        return preparation.prepare(inner, around, strategy, state.modules)

    memory = Pool() if pool is None else pool.pool
    return Graphed(
        step,
        prepare,
        pool=memory,
        buffers=buffers,
        padder=padder,
        within=within,
        refused=refused,
    )


def _as_it_is(step: Callable[..., Any]) -> Callable[..., Any]:
    return step
