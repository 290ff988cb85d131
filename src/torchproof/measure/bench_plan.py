"""The questions people ask of a benchmark, as the arms and shapes that answer them."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchproof import strategies
from torchproof.measure import guard_filters
from torchproof.measure.specs import EAGER, StrategySpec
from torchproof.records import UserError
from torchproof.strategies import Strategy

NUMBER_TYPES = ("float32", "float16", "bfloat16", "float64")
CONTROL, TOGETHER = "control", "all together"


@dataclass(frozen=True)
class BenchOptions:
    """What is asked; nothing asked means the default strategies."""

    strategies: tuple[str, ...] = ()
    modes: bool = False
    latency: bool = False
    guards: bool = False
    ablate: tuple[tuple[str, Any], ...] = ()  # None: the other value of a switch
    batch: tuple[int, ...] = ()
    sequence: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def names_strategies(self) -> bool:
        asked = (self.modes, self.latency, self.guards, self.ablate, self.backends)
        return bool(self.strategies or any(asked))

    @property
    def shapes(self) -> tuple[Mapping[str, int], ...]:
        """Gone through in this order, the first one cold."""
        swept = [{"batch": size} for size in self.batch]
        swept += [{"sequence": length} for length in self.sequence]
        return tuple(swept) or ({},)


def strategy_specs(
    asked: BenchOptions, compile_with: Mapping[str, Any]
) -> tuple[StrategySpec, ...]:
    """Eager first, then every arm that a question needs, each once."""
    found = [StrategySpec(EAGER)]
    found += [StrategySpec(strategies.parse(name)) for name in asked.strategies]
    full = strategies.parse("full")
    if asked.modes:
        found += [StrategySpec(_in_mode(full, mode)) for mode in strategies.MODES]
    if asked.latency:
        found += [StrategySpec(full), StrategySpec(strategies.parse("regional"))]
    if asked.guards:
        found.append(StrategySpec(full))
        for method in guard_filters.METHODS:
            found.append(StrategySpec(full, variant={"guards": method}, guards=method))
    for backend in asked.backends:
        arm = strategies.with_arguments(full, backend=backend)
        found.append(StrategySpec(arm, variant={"backend": backend}))
    found += _ablation(full, asked.ablate)
    if not asked.names_strategies:
        found += _default(compile_with)
    if compile_with:
        found = [_compiled_with(spec, compile_with) for spec in found]
    return tuple(_with_types(_each_once(found), asked.dtypes))


def _default(compile_with: Mapping[str, Any]) -> list[StrategySpec]:
    nested = strategies.records_graphs(compile_with)  # no graph within a graph
    for_cuda = set(strategies.defaults("cuda")) - set(strategies.defaults("cpu"))
    return [
        StrategySpec(strategies.parse(name), cuda_only=name in for_cuda)
        for name in strategies.defaults("cuda")
        if not (nested and strategies.parse(name).graph)
    ]


def _in_mode(full: Strategy, mode: str) -> Strategy:
    return full if mode == "default" else strategies.parse(f"full:{mode}")


def _ablation(full: Strategy, changes: Iterable[tuple[str, Any]]) -> list[StrategySpec]:
    """Each change alone, all together, and a control, which is never left out."""
    changes = list(changes)
    if not changes:
        return []
    found = [StrategySpec(full, variant={"config": CONTROL})]
    alone = [{name: value} for name, value in changes]
    named = [(f"{name}={value}", {name: value}) for name, value in changes]
    if len(changes) > 1:
        together: dict[str, Any] = {}
        for change in alone:
            together |= change
        named.append((TOGETHER, together))
    for label, options in named:
        arm = strategies.with_arguments(full, options=options)
        found.append(StrategySpec(arm, variant={"config": label}))
    return found


def _compiled_with(spec: StrategySpec, arguments: Mapping[str, Any]) -> StrategySpec:
    """`--compile` holds for every arm that compiles and does not say otherwise."""
    if not spec.strategy.compiles:
        return spec
    more = {k: v for k, v in arguments.items() if k not in spec.strategy.arguments}
    if "options" in arguments and "options" in spec.strategy.arguments:
        more["options"] = arguments["options"] | spec.strategy.arguments["options"]
    return replace(spec, strategy=strategies.with_arguments(spec.strategy, **more))


def _each_once(specs: Iterable[StrategySpec]) -> list[StrategySpec]:
    kept: dict[str, StrategySpec] = {}
    for spec in specs:
        kept.setdefault(spec.label, spec)
    return list(kept.values())


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


# -- reading what the user wrote -------------------------------------------------------


def read_sizes(text: str, flag: str) -> tuple[int, ...]:
    """`4,8,1` as numbers above 0."""
    try:
        sizes = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise UserError(f"{flag} {text}: give whole numbers above 0, as in 4,8,1")
    return sizes


def read_types(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in NUMBER_TYPES:
            known = ", ".join(NUMBER_TYPES)
            raise UserError(f"--dtype {name}: choose from {known}")
    return names


def resolve_ablation(
    changes: Iterable[tuple[str, Any]], switches: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """Changes of Inductor's switches, each known and with a value."""
    found = []
    for name, value in changes:
        if name not in switches:
            near = difflib.get_close_matches(name, switches, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "see torch._inductor.config"
            raise UserError(f"--ablate: Inductor has no switch {name!r}: {hint}")
        if value is None:
            if not isinstance(switches[name], bool):
                raise UserError(f"--ablate {name}: give a value, as in {name}=...")
            value = not switches[name]
        found.append((name, value))
    return tuple(found)


def read_ablation(text: str) -> tuple[tuple[str, Any], ...]:
    """`max_autotune;coordinate_descent_tuning=True`: names, with values or without."""
    found: list[tuple[str, Any]] = []
    for part in text.split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name:
            continue
        if equals:
            try:
                found.append((name, ast.literal_eval(value)))
            except (ValueError, SyntaxError):
                found.append((name, value))
        else:
            found.append((name, None))
    if text.strip() and not found:
        raise UserError(f"--ablate {text!r} names no switch, as in 'max_autotune'")
    return tuple(found)
