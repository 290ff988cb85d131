"""The strategies that a search may try, the most promising first.

Takes the facts about eager, returns a list that is fixed by them, with the reason for
each candidate that does not apply. The search decides how far it gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torchproof import strategies
from torchproof.measure import StrategySpec
from torchproof.records import Keywords, Stage, Trial, UserError, shapes
from torchproof.records.objective import Objective
from torchproof.strategies import Strategy, parse

_TUNED = "max-autotune-no-cudagraphs"
_MOST_CORES = 2  # methods that are compiled alone
_FEW = 0.1  # below this share of matrix products, tuning them does not pay


@dataclass(frozen=True)
class Switch:
    """A setting of Inductor or Dynamo that is off by default.

    With `may_race`, kernels overlap, so one could read what is not written yet.
    """

    name: str
    of: Literal["inductor", "dynamo"] = "inductor"
    may_race: bool = False

    @property
    def setting(self) -> str:
        return f"{self.of}.{self.name}"

    def __str__(self) -> str:
        return f"{self.name}=True"


PDL = Switch("triton.enable_pdl", may_race=True)
NESTED_BREAKS = Switch("nested_graph_breaks", of="dynamo")
PRODUCTS = Switch("max_autotune_gemm")
DESCENT = Switch("coordinate_descent_tuning")
_CUDA = (Switch("combo_kernels"), PRODUCTS)
_CPU = (Switch("cpp_wrapper"), Switch("aggressive_fusion"), PRODUCTS)
SWITCHES = (PDL, NESTED_BREAKS, DESCENT, *dict.fromkeys((*_CUDA, *_CPU)))


@dataclass(frozen=True)
class Candidate:
    """A strategy that the search may try.

    `base` names the candidate that compiles the same code without a graph, mode or
    switch: if that one fails, this one does too. A `fallback` compiles less than
    `full`, so it is tried only if `full` is not one graph. `why_not` says why it does
    not apply to the target.
    """

    spec: StrategySpec
    stage: Stage = "forms"
    base: str | None = None
    switch: Switch | None = None
    fallback: bool = False
    why_not: str | None = None

    @property
    def name(self) -> str:
        return self.spec.label

    @property
    def strategy(self) -> Strategy:
        return self.spec.strategy

    @property
    def follows(self) -> set[str]:
        """The candidates whose trials have to end before this one's starts."""
        names = {self.base} if self.base else set()
        return names | {"full"} if self.fallback else names

    @property
    def options(self) -> Keywords:
        """Inductor's options, those that a mode stands for included."""
        arguments = self.strategy.arguments
        mode = arguments.get("mode") or "default"
        return {**strategies.MODE_OPTIONS.get(mode, {}), **arguments.get("options", {})}

    @property
    def tunes_products(self) -> bool:
        """Whether Inductor tries many kernels for one matrix product."""
        options = self.options
        return bool(options.get("max_autotune") or options.get("max_autotune_gemm"))


@dataclass(frozen=True)
class Eager:
    """What measuring eager showed: its trial, the machine, and the target."""

    trial: Trial
    probe: shapes.Probe
    environment: shapes.Environment


def named(names: Sequence[str], compile_with: Keywords) -> list[Candidate]:
    """The strategies that the user listed, and no others."""
    entries = [Entry(name) for name in dict.fromkeys(names) if not parse(name).as_is]
    return [_candidate(entry, {}, compile_with) for entry in entries]


def candidates(
    probe: shapes.Probe,
    device: str | None,
    objective: Objective,
    compile_with: Keywords,
) -> list[Candidate]:
    """All strategies, the most promising first, with the reason if one cannot run."""
    entries = _entries(probe, device == "cuda", objective)
    return [_candidate(entry, probe, compile_with) for entry in entries]


class Entry(NamedTuple):
    name: str
    switch: Switch | None = None
    fallback: bool = False


def _entries(probe: shapes.Probe, cuda: bool, objective: Objective) -> Iterator[Entry]:
    forms = ["full", "regional"]
    if objective.needs_cold_starts:  # the shortest compilation comes first
        forms = ["regional", "nested", "full"]
    cores = [f"core:{path}" for path in probe.get("core") or ()][:_MOST_CORES]
    fallbacks = [name for name in ("nested", *cores) if name not in forms]
    yield from map(Entry, _recorded(forms) if cuda else forms)
    for word in ("marks", "dynamic", "static"):
        yield from (Entry(f"{form}:{word}") for form in ("full", "regional"))
    for name in _recorded(fallbacks) if cuda else fallbacks:
        yield Entry(name, fallback=True)
    yield Entry("full", NESTED_BREAKS, fallback=True)
    if not objective.is_about_steps:
        return
    if cuda:
        tuned = f"full+graph:{_TUNED}"
        # Matrices times vectors become kernels that can be fused, as in decoding.
        yield from (Entry("full+graph", switch) for switch in (DESCENT, PDL))
        yield from map(Entry, (tuned, "full:reduce-overhead"))
        yield Entry(tuned, PDL)
        yield Entry("eager+graph")
        yield from (Entry("full+graph", switch) for switch in _CUDA)
        modes = (f"regional+graph:{_TUNED}", f"full:{_TUNED}", "full:max-autotune")
        yield from map(Entry, modes)
    else:
        yield Entry(f"full:{_TUNED}")
        yield from (Entry("full", switch) for switch in _CPU)


def _recorded(names: Sequence[str]) -> Iterator[str]:
    """Each name without and with a whole-step CUDA graph: `core+graph:encode`."""
    for name in names:
        form, colon, rest = name.partition(":")
        yield from (name, f"{form}+{strategies.GRAPH}{colon}{rest}")


def _candidate(entry: Entry, probe: shapes.Probe, compile_with: Keywords) -> Candidate:
    strategy, switch, why_not = parse(entry.name), entry.switch, None
    try:
        strategy = _configured(strategy, switch, compile_with)
    except UserError as error:  # the strategy does not accept a --compile argument
        why_not = str(error)
    found = Candidate(
        StrategySpec(strategy, variant={"config": str(switch)} if switch else {}),
        stage="switches" if switch else "forms",
        base=entry.name if switch else _base(strategy, entry.name),
        switch=switch,
        fallback=entry.fallback,
    )
    return replace(found, why_not=why_not or _why_not(found, probe, compile_with))


def _configured(
    strategy: Strategy, switch: Switch | None, compile_with: Keywords
) -> Strategy:
    more = {k: v for k, v in compile_with.items() if k not in strategy.arguments}
    if more and strategy.compiles:
        strategy = strategies.with_arguments(strategy, **more)
    if switch is None:
        return strategy
    if switch.of == "dynamo":
        return replace(strategy, dynamo={**strategy.dynamo, switch.name: True})
    return strategies.with_arguments(strategy, options={switch.name: True})


def _base(strategy: Strategy, name: str) -> str | None:
    """The same form alone; None if that is the strategy or compiles other code."""
    method = f":{strategy.method}" if strategy.method else ""
    plain = f"{strategy.form}{method}"
    changed = name == plain or strategy.dynamic != "auto"
    return plain if strategy.compiles and not changed else None


def _why_not(
    candidate: Candidate, probe: shapes.Probe, compile_with: Keywords
) -> str | None:
    strategy, switch = candidate.strategy, candidate.switch
    if strategy.form in ("regional", "nested") and probe.get("blocks") == {}:
        return "the target has no repeated blocks"
    if strategy.dynamic != "auto" and probe.get("varying") in ([], ()):
        return "no input size varies between calls"
    share = probe.get("matmul_share")
    if candidate.tunes_products and share is not None and share < _FEW:
        return f"matrix products take only {share:.0%} of the time"
    if switch is None:
        return None
    if why := (probe.get("unavailable") or {}).get(switch.setting):
        return str(why)
    backend = compile_with.get("backend") or "inductor"
    if switch.of == "inductor" and backend != "inductor":
        return f"it is a setting of Inductor, and the backend is {backend}"
    if (compile_with.get("options") or {}).get(switch.name):
        return "--compile sets it for all candidates"
    return None
