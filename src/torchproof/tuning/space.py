"""The search space: compile forms and modes, with and without a whole-step CUDA graph,
dynamic and static shapes, and switches of the compiler on the fastest form.

Takes the probe's results, returns candidates with the most promising first, and the
candidates that do not apply, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof import strategies
from torchproof.measure import StrategySpec
from torchproof.records import Skip, Stage, Trial, UserError
from torchproof.strategies import Strategy, parse
from torchproof.tuning.candidate import Candidate, Switch
from torchproof.tuning.objectives import Objective

# Each is tried alone on the fastest form. Autotuning of all kernels is a mode, and part
# of the forms.
SWITCHES = (
    Switch("coordinate_descent_tuning", device="cuda"),
    Switch("combo_kernels", device="cuda"),
    Switch("max_autotune_gemm", changes="products"),
    Switch("triton.enable_pdl", changes="launches"),
    Switch("nested_graph_breaks", of="dynamo", changes="graphs"),
    Switch("cpp_wrapper", device="cpu"),
    Switch("aggressive_fusion", device="cpu"),
)
_TUNED = "max-autotune-no-cudagraphs"
_MOST_CORES = 2  # methods that are compiled alone


@dataclass
class Space:
    candidates: list[Candidate] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)


def forms(
    probe: Mapping[str, Any],
    device: str,
    objective: Objective,
    compile_with: Mapping[str, Any],
) -> Space:
    """All forms; those that are cheap to try and bound others come first."""
    space = Space()
    order = Order.of(probe, device, objective)
    for name in _names(probe, order, objective):
        why = _does_not_apply(parse(name), probe, device)
        if why is None:
            _add(space, name, order, compile_with)
        else:
            space.skipped.append(Skip(name, why))
    return space


def named(names: Sequence[str], order: Order, compile_with: Mapping[str, Any]) -> Space:
    """The forms that the user listed, and no others."""
    space = Space()
    for name in dict.fromkeys(names):
        if not parse(name).as_is:
            _add(space, name, order, compile_with)
    return space


def _add(
    space: Space, name: str, order: Order, compile_with: Mapping[str, Any]
) -> None:
    strategy = parse(name)
    more = {k: v for k, v in compile_with.items() if k not in strategy.arguments}
    follows = order.before(strategy)
    try:
        if more and strategy.compiles:
            strategy = strategies.with_arguments(strategy, **more)
        space.candidates.append(Candidate(StrategySpec(strategy), "forms", follows))
    except UserError as error:  # the strategy does not accept a --compile argument
        space.skipped.append(Skip(name, str(error)))


@dataclass(frozen=True)
class Order:
    """Which candidate runs before which, because its result may rule the other out.

    If steps are bound by launches, a CUDA graph removes most of that time: the search
    tries forms with a graph first, and without one only if that fails.
    """

    recorded_first: bool

    @classmethod
    def of(cls, probe: Mapping[str, Any], device: str, objective: Objective) -> Order:
        waits = probe.get("bound") == "launch" and device == "cuda"
        return cls(waits and objective.kind == "step")

    def before(self, strategy: Strategy) -> str | None:
        method = f":{strategy.method}" if strategy.method else ""
        plain = f"{strategy.form}{method}"
        recorded = f"{strategy.form}+{strategies.GRAPH}{method}"
        first = recorded if self.recorded_first else plain
        if strategy.form == "eager":
            return "eager"
        if strategy.name != first:
            return first
        if strategy.form in ("nested", "core"):  # fallbacks for full
            return f"full+{strategies.GRAPH}" if self.recorded_first else "full"
        return None


def _names(probe: Mapping[str, Any], order: Order, objective: Objective) -> list[str]:
    cores = [f"core:{path}" for path in probe.get("core") or ()][:_MOST_CORES]
    plain = ["full", "regional", "nested", *cores]
    if objective.needs_cold_starts:  # the shortest compilation comes first
        plain = ["regional", "nested", "full", *cores]
    recorded = [*map(_recorded, plain), "eager+graph"]
    shapes = [
        f"{form}:{word}"
        for form in ("full", "regional")
        for word in ("marks", "dynamic", "static")
    ]
    modes = ["full:reduce-overhead", f"full:{_TUNED}", "full:max-autotune"]
    modes += [f"full+graph:{_TUNED}", f"regional+graph:{_TUNED}"]
    both = [*recorded, *plain] if order.recorded_first else [*plain, *recorded]
    return [*both, *shapes, *modes]


def _recorded(name: str) -> str:
    """`core:encode` as `core+graph:encode`."""
    form, colon, rest = name.partition(":")
    return f"{form}+{strategies.GRAPH}{colon}{rest}"


def _does_not_apply(
    strategy: Strategy, probe: Mapping[str, Any], device: str
) -> str | None:
    if device != "cuda" and (
        strategy.graph or strategies.records_graphs(strategy.arguments)
    ):
        return "CUDA graphs need a CUDA device"
    if strategy.form in ("regional", "nested") and probe.get("blocks") == {}:
        return "the target has no repeated blocks"
    if strategy.dynamic != "auto" and probe.get("varying") == []:
        return "no input size varies between calls"
    return None


# -- on the fastest forms --------------------------------------------------------------


def switched(
    base: Candidate, trial: Trial, probe: Mapping[str, Any], device: str
) -> Space:
    """The form with each switch alone; `trial` is that of the form."""
    space = Space()
    for switch in SWITCHES:
        if switch.device not in (None, device) or _is_on(switch, base):
            continue
        why = (probe.get("unavailable") or {}).get(switch.setting)
        why = why or _has_no_effect(switch, base, trial)
        if why is None:
            space.candidates.append(_with(base, [switch], "switches"))
        else:
            space.skipped.append(Skip(f"{base.name}, {switch}", why))
    return space


def _is_on(switch: Switch, base: Candidate) -> bool:
    if switch.changes == "products" and base.tunes_products:
        return True
    settings = base.strategy.dynamo if switch.of == "dynamo" else base.options
    return bool(settings.get(switch.name))


def _has_no_effect(switch: Switch, base: Candidate, trial: Trial) -> str | None:
    backend = base.strategy.arguments.get("backend") or "inductor"
    if switch.of == "inductor" and backend != "inductor":
        return f"it is a setting of Inductor, and the backend is {backend}"
    counts = trial.facts.get("counts") or {}
    if switch.changes == "graphs" and not counts.get("graph_breaks"):
        return f"no graph break was observed in {base.name}"
    return None


def together(base: Candidate, helpful: Iterable[Candidate]) -> Candidate | None:
    """The form with all switches that helped alone; None for fewer than two."""
    switches = [switch for each in helpful for switch in each.switches]
    return _with(base, switches, "together") if len(switches) > 1 else None


def without_races(base: Candidate, candidate: Candidate) -> Candidate | None:
    """The candidate without switches that may race; None if it has none."""
    sound = [switch for switch in candidate.switches if not switch.may_race]
    if len(sound) == len(candidate.switches):
        return None
    return _with(base, sound, candidate.stage) if sound else base


def _with(base: Candidate, switches: Sequence[Switch], stage: Stage) -> Candidate:
    options = {each.name: True for each in switches if each.of == "inductor"}
    settings = {each.name: True for each in switches if each.of == "dynamo"}
    strategy = base.strategy
    if options:
        strategy = strategies.with_arguments(strategy, options=options)
    strategy = replace(strategy, dynamo={**strategy.dynamo, **settings})
    label = ", ".join(map(str, switches))
    spec = StrategySpec(strategy, variant={"config": label})
    return Candidate(spec, stage, base.name, tuple(switches))
