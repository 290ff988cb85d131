"""Builds a graphed step from the arguments of `torchproof.graph`.

Checks the arguments, reads the recipe, and decides what is recorded and how it is
compiled.
"""

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
from torchproof.torch_private import contract


def check(step: Any, example: Any, **options: Any) -> None:
    """Raises `UserError` for the first invalid argument of `graph`."""
    if options["outputs"] not in ("copies", "buffers"):
        raise invalid_argument("outputs", options["outputs"], "'copies' or 'buffers'")
    if not callable(step):
        raise UserError(f"graph: {type(step).__name__} is not callable")
    kinds = {
        "train": (bool, "True, False or None"),
        "strategy": (str, "its name"),
        "pool": (Graphed, "a graphed step"),
    }
    for name, (kind, expected) in kinds.items():
        if options[name] is not None and not isinstance(options[name], kind):
            raise invalid_argument(name, options[name], expected)
    if not isinstance(example, Mapping | tuple | list | None):
        raise invalid_argument(
            "example", example, "a tuple of arguments or a dict of keywords"
        )


def parse_strategy(name: str, arguments: Mapping[str, Any]) -> Strategy:
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


def build(
    step: Callable[..., Any],
    requested: Mapping[str, Any],
    padding: Mapping[str, Any],
    *,
    pool: Graphed | None,
    buffers: bool,
) -> Graphed:
    """The graphed step that the arguments or the recipe describe."""
    strategy, arguments = requested["strategy"], requested["arguments"]
    if requested["recipe"] is None:
        options = GraphOptions(
            parse_strategy(strategy or "eager", arguments), bool(requested["train"])
        )
    else:
        other_options = {"strategy": strategy, **arguments}
        options = options_from_recipe(
            step, requested["recipe"], requested["train"], other_options
        )
    return build_graphed(
        step,
        train=options.train,
        strategy=options.strategy,
        pool=pool,
        buffers=buffers,
        padder=Padder.parse(step, **{**padding, **options.padding}),
        refused=options.refused or _lacking_hook(),
    )


def _lacking_hook() -> Stop | None:
    """Why nothing can be recorded on the installed torch."""
    messages = contract.missing("graph")
    return Stop("capture", messages[0]) if messages else None


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
            f"strategy {strategy.name!r}: this mode records its own CUDA graphs, which"
            " cannot be nested; use max-autotune-no-cudagraphs"
        )
    inner = step
    around = cast(preparation.Body, _unchanged)
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


def _unchanged(step: Callable[..., Any]) -> Callable[..., Any]:
    return step
