"""Turns the flags of `bench` into the strategies and input shapes to measure.

Takes `BenchOptions` and the arguments for `torch.compile`, returns `StrategySpec`s.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torchproof import strategies
from torchproof.measure import guard_filters
from torchproof.measure.specs import EAGER, Plan, StrategySpec
from torchproof.records import Keywords, TorchConfig, UserError, stats
from torchproof.records.options import BenchOptions
from torchproof.strategies import Strategy

CONTROL = "control"
TOGETHER = "all together"


@dataclass(frozen=True)
class Sampling:
    """How long to sample each strategy in all, and in how many fresh processes."""

    seconds: float = Plan.seconds
    repeats: int = Plan.repeats


EFFORTS = {
    "quick": Sampling(Plan.seconds / 2, repeats=1),
    "normal": Sampling(),
    "full": Sampling(
        Plan.seconds / Plan.repeats * stats.ENOUGH_PROCESSES,
        repeats=stats.ENOUGH_PROCESSES,
    ),
}


def sampling(effort: str) -> Sampling:
    if effort not in EFFORTS:
        raise UserError("bench has to run the target: --effort quick, normal or full")
    return EFFORTS[effort]


def strategy_specs(
    options: BenchOptions, compile_arguments: Keywords
) -> tuple[StrategySpec, ...]:
    """Returns eager, then every strategy that an option needs, without duplicates."""
    specs = [StrategySpec(EAGER)]
    specs += [StrategySpec(strategies.parse(name)) for name in options.strategies]
    full = strategies.parse("full")
    if options.modes:
        specs += [StrategySpec(_in_mode(full, mode)) for mode in strategies.MODES]
    if options.latency:
        specs += [StrategySpec(full), StrategySpec(strategies.parse("regional"))]
    if options.guards:
        specs.append(StrategySpec(full))
        for method in guard_filters.METHODS:
            specs.append(StrategySpec(full, variant={"guards": method}, guards=method))
    for backend in options.backends:
        strategy = strategies.with_arguments(full, backend=backend)
        specs.append(StrategySpec(strategy, variant={"backend": backend}))
    specs += _ablation(full, options.ablate)
    if not options.names_strategies:
        specs += _default(compile_arguments)
    if compile_arguments:
        specs = [_compiled_with(spec, compile_arguments) for spec in specs]
    return tuple(_with_types(_without_duplicates(specs), options.dtypes))


def _default(compile_arguments: Keywords) -> list[StrategySpec]:
    nested = strategies.records_graphs(compile_arguments)  # CUDA graphs do not nest
    for_cuda = set(strategies.defaults("cuda")) - set(strategies.defaults("cpu"))
    return [
        StrategySpec(strategies.parse(name), cuda_only=name in for_cuda)
        for name in strategies.defaults("cuda")
        if not (nested and strategies.parse(name).graph)
    ]


def _in_mode(full: Strategy, mode: str) -> Strategy:
    return full if mode == "default" else strategies.parse(f"full:{mode}")


def _ablation(full: Strategy, changes: Iterable[tuple[str, Any]]) -> list[StrategySpec]:
    """Returns a control, each change alone, and all changes together."""
    changes = list(changes)
    if not changes:
        return []
    specs = [StrategySpec(full, variant={"config": CONTROL})]
    labelled = [(f"{name}={value}", {name: value}) for name, value in changes]
    if len(changes) > 1:
        labelled.append((TOGETHER, dict(changes)))
    for label, options in labelled:
        strategy = strategies.with_arguments(full, options=options)
        specs.append(StrategySpec(strategy, variant={"config": label}))
    return specs


def _compiled_with(spec: StrategySpec, arguments: Keywords) -> StrategySpec:
    """Adds the arguments of `--compile` that the strategy does not set itself."""
    if not spec.strategy.compiles:
        return spec
    more = {k: v for k, v in arguments.items() if k not in spec.strategy.arguments}
    if "options" in arguments and "options" in spec.strategy.arguments:
        more["options"] = arguments["options"] | spec.strategy.arguments["options"]
    return replace(spec, strategy=strategies.with_arguments(spec.strategy, **more))


def _without_duplicates(specs: Iterable[StrategySpec]) -> list[StrategySpec]:
    by_label: dict[str, StrategySpec] = {}
    for spec in specs:
        by_label.setdefault(spec.label, spec)
    return list(by_label.values())


def _with_types(
    specs: list[StrategySpec], dtypes: tuple[str, ...]
) -> list[StrategySpec]:
    if not dtypes:
        return specs
    return [
        replace(spec, dtype=dtype, variant={"dtype": dtype, **spec.variant})
        for dtype in dtypes
        for spec in specs
    ]


def resolve_ablation(
    changes: Iterable[tuple[str, Any]], defaults: TorchConfig
) -> tuple[tuple[str, Any], ...]:
    """Checks that Inductor has each option; a boolean without a value is flipped."""
    resolved = []
    for name, value in changes:
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "see torch._inductor.config"
            raise UserError(f"--ablate: Inductor has no option {name!r}: {hint}")
        if value is None:
            if not isinstance(defaults[name], bool):
                raise UserError(f"--ablate {name}: it needs a value: {name}=VALUE")
            value = not defaults[name]
        resolved.append((name, value))
    return tuple(resolved)
