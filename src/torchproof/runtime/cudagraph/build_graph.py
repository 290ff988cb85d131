"""Builds a graphed step from the arguments of `torchproof.graph`.

Checks the arguments, reads the recipe, and decides what is recorded and how it is
compiled.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchproof import strategies
from torchproof.records import Keywords, UserError
from torchproof.runtime.cudagraph import graph, preparation
from torchproof.runtime.cudagraph.capture import Pool
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.runtime.cudagraph.graphed_step import (
    DEFAULT,
    Contract,
    Graphed,
    Later,
)
from torchproof.runtime.cudagraph.ladder import Kind, Way
from torchproof.runtime.cudagraph.padding import Padder
from torchproof.runtime.cudagraph.partial_trace import PartialTrace
from torchproof.runtime.cudagraph.preparation import Plan, Preparation
from torchproof.runtime.cudagraph.progressive import (
    DEADLINE_S,
    Progress,
    Stage,
    Within,
)
from torchproof.runtime.cudagraph.state_snapshot import StateSnapshot
from torchproof.runtime.recipe_following import apply_settings
from torchproof.strategies import (
    TUNE_HINT,
    Recipe,
    RecipeSource,
    Strategy,
    compile_arguments,
    invalid_argument,
    recipe_source,
    source_lines,
)
from torchproof.torch_private import contract as hooks
from torchproof.torch_private import early_start, remote_graphs

BEST = "best"  # regional first, then full if that is faster


def check(step: Any, example: Any, **options: Any) -> None:
    """Raises `UserError` for the first invalid argument of `graph`."""
    if options["outputs"] not in ("copies", "buffers"):
        raise invalid_argument("outputs", options["outputs"], "'copies' or 'buffers'")
    if options["checks"] not in ("default", "arguments"):
        raise invalid_argument("checks", options["checks"], "'default' or 'arguments'")
    if options["audit"] is not None and options["checks"] != "arguments":
        raise UserError("audit needs checks='arguments': all else is always checked")
    if not callable(step):
        raise UserError(f"graph: {type(step).__name__} is not callable")
    kinds: dict[str, tuple[Any, str]] = {
        "train": (bool, "True, False or None"),
        "strategy": (str, "its name"),
        "wait": (bool, "True or False"),
        "pool": (Graphed, "a graphed step"),
        "audit": (int, "a number of calls"),
        "depends": (Callable, "a function without arguments"),
    }
    for name, (kind, expected) in kinds.items():
        if options[name] is not None and not isinstance(options[name], kind):
            raise invalid_argument(name, options[name], expected)
    if options["audit"] is not None and options["audit"] < 1:
        raise invalid_argument("audit", options["audit"], "at least 1")
    if not isinstance(example, Mapping | tuple | list | None):
        raise invalid_argument(
            "example", example, "a tuple of arguments or a dict of keywords"
        )


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


def build(
    step: Callable[..., Any],
    requested: Keywords,
    padding: Keywords,
    *,
    pool: Graphed | None,
    buffers: bool,
    contract: Contract,
) -> Graphed:
    """The graphed step that the arguments or the recipe describe."""
    strategy, arguments = requested["strategy"], requested["arguments"]
    if requested["recipe"] is None:
        first, later = _strategies(strategy, arguments, wait=requested["wait"])
        options = GraphOptions(first, bool(requested["train"]), later=later)
    else:
        other_options = {"strategy": strategy, **arguments}
        options = options_from_recipe(
            step, requested["recipe"], requested["train"], other_options
        )
        if not requested["wait"]:
            options = options.compiled_later()
    padder = Padder.parse(step, **{**padding, **options.padding})
    if options.strategy.compiles and not options.refused:
        early_start.begin()
    return build_graphed(
        step,
        train=options.train,
        strategy=options.strategy,
        pool=pool,
        buffers=buffers,
        padder=padder,
        refused=options.refused,
        lacking=functools.partial(_lacking_hook, options.strategy),
        later=options.later,
        contract=contract,
    )


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


def _lacking_hook(strategy: Strategy) -> Stop | None:
    """Why nothing can be recorded on the installed torch."""
    messages = hooks.missing("graph")
    if strategy.compiles:  # probing imports Dynamo, which takes seconds
        messages += hooks.missing("graph of compiled code")
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
    lacking: Callable[[], Stop | None] = lambda: None,
    later: Sequence[Strategy] = (),
    deadline_s: float = DEADLINE_S,
    unrecorded: Callable[..., Any] | None = None,
    contract: Contract = DEFAULT,
) -> Graphed:
    """`later` are strategies that are compiled while recordings answer calls.

    The code of each of them has `deadline_s` seconds in the compile process.
    `unrecorded` runs calls that cannot be recorded, if not the prepared step.
    """
    _assert_recordable(strategy, *later)
    first = Plan(strategy)
    inner = step
    around = cast(preparation.Body, _unchanged)
    if train:
        inner, around = preparation.with_loss(step), preparation.training
    elif isinstance(step, nn.Module):
        around = preparation.inference

    def prepare(state: StateSnapshot, plan: Plan = first) -> Preparation:
        return preparation.prepare(inner, around, plan, state.modules)

    def stages(state: StateSnapshot) -> list[Stage]:
        return [_stage(prepare, state, each) for each in later]

    def ways(state: StateSnapshot) -> list[Way]:
        if not train and isinstance(step, nn.Module):  # its gradients are not asked for
            parameters: Callable[[], list[tuple[str, Tensor]]] = list
        else:
            parameters = lambda: state.parameters  # noqa: E731
        plans = {
            Kind.EAGER: Plan(strategies.parse("eager")),
            Kind.PIECES: Plan(strategies.parse("full:reduce-overhead")),
            Kind.COMPILED: Plan(strategies.parse("full")),
        }
        body = preparation.training_apart if train else around
        return [
            Way(kind, preparation.prepare(step, body, plan, state.modules), parameters)
            for kind, plan in plans.items()
        ]

    memory = Pool() if pool is None else pool.pool
    return Graphed(
        step,
        prepare,
        pool=memory,
        buffers=buffers,
        padder=padder,
        within=within,
        refused=refused,
        lacking=lacking,
        later=Later(Progress(deadline_s), stages, Preparation(inner, around))
        if later
        else None,
        unrecorded=unrecorded,
        ways=ways,
        contract=contract,
    )


def _assert_recordable(*chosen: Strategy) -> None:
    for each in chosen:
        if strategies.records_graphs(each.arguments):
            raise UserError(
                f"strategy {each.name!r}: this mode records its own CUDA graphs, which"
                " cannot be nested; use max-autotune-no-cudagraphs"
            )


def _stage(
    prepare: Callable[[StateSnapshot, Plan], Preparation],
    state: StateSnapshot,
    strategy: Strategy,
) -> Stage:
    backend = remote_graphs.Deferred({"dynamic": False, **strategy.arguments})
    traced = PartialTrace()
    plan = Plan(strategy, backend, traced)
    return Stage(strategy.name, backend, traced, lambda: prepare(state, plan))


def _unchanged(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


# -- recipes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphOptions:
    """How a step is compiled and recorded; `refused` is why it is not recorded."""

    strategy: Strategy
    train: bool
    padding: Keywords = field(default_factory=dict, hash=False)
    refused: Stop | None = None
    later: tuple[Strategy, ...] = ()

    def compiled_later(self) -> GraphOptions:
        """The same strategy in the end, but nobody waits for the compiler."""
        if not self.strategy.compiles:
            return self
        later = (*self.later, self.strategy)
        return replace(self, strategy=strategies.parse("eager"), later=later)


def options_from_recipe(
    step: Callable[..., Any],
    recipe: Any,
    train: bool | None,
    other_options: Keywords,
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
        return GraphOptions(strategies.parse("eager"), measured, refused=off)
    if why := source.adopted(step).why_not or apply_settings(source):
        return _without_graph(source, measured, why)
    return _from_recipe(step, source, source.recipe)


def _without_graph(source: RecipeSource, train: bool, why: str | None) -> GraphOptions:
    reason = f"{source.name} is not used: {why}; {TUNE_HINT}"
    return GraphOptions(
        strategies.parse("eager"), train, refused=Stop("recipe", reason)
    )


def _from_recipe(step: Any, source: RecipeSource, recipe: Recipe) -> GraphOptions:
    strategy = recipe.strategy
    refused = None
    if not strategy.graph:
        reason = f"{source.name} chose {strategy.name}, which has no graph"
        refused = Stop("recipe", reason)
    inner = strategy.in_graph
    if inner.form == "core":
        compile_method(step, inner)
        inner = strategies.parse("eager")
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
