"""Puts a graphed step together: what is recorded, and how it is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from torchproof import strategies
from torchproof.records import UserError
from torchproof.replay import body, recipes
from torchproof.replay.graphed import Graphed, Within
from torchproof.replay.padder import Padder
from torchproof.replay.recipes import Recipe
from torchproof.replay.sight import Sight
from torchproof.replay.tape import Pool
from torchproof.strategies import Strategy


def graphed(
    step: Callable[..., Any],
    *,
    train: bool,
    strategy: str | Strategy,
    pool: Graphed | None,
    buffers: bool,
    padder: Padder | None,
    within: Within = contextlib.nullcontext,
) -> Graphed:
    chosen = strategies.parse(strategy) if isinstance(strategy, str) else strategy
    if strategies.records_graphs(chosen.arguments):
        raise UserError(
            f"strategy {chosen.name!r}: this mode makes CUDA graphs of its own, and one"
            " cannot be recorded inside another; use max-autotune-no-cudagraphs"
        )
    inner, around = step, cast(recipes.Body, _as_it_is)
    if train:
        inner, around = body.with_loss(step), body.training
    elif isinstance(step, nn.Module):
        around = body.inference

    def cook(sight: Sight) -> Recipe:
        return recipes.recipe(inner, around, chosen, sight.modules)

    memory = Pool() if pool is None else pool.pool
    return Graphed(
        step, cook, pool=memory, buffers=buffers, padder=padder, within=within
    )


def _as_it_is(step: Callable[..., Any]) -> Callable[..., Any]:
    return step
