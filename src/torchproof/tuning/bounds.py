"""Why a candidate need not be tried: what others gave bounds what it can give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof import strategies
from torchproof.tuning.objectives import Objective
from torchproof.tuning.trial import Candidate, Trial

_CLOSE = 0.99  # who comes no closer to the leader than this is not worth its trial
_WORTH = 0.98  # of the leader's step: who comes no further is within 2 percent of it
_BEST_SWITCH = 0.15  # by how much a switch may shorten the kernels that it changes
_FEW = 0.1  # share of the time in matrix products below which tuning them is idle


@dataclass(frozen=True)
class Evidence:
    """What a search knows so far; `leader` is the best of the trials, or eager."""

    objective: Objective
    probe: Mapping[str, Any]
    trials: Mapping[str, Trial]
    leader: Trial

    @property
    def full(self) -> Trial | None:
        """The whole target compiled, in a graph or not, where that works."""
        trial = self.trials.get("full") or self.trials.get("full+graph")
        return trial if trial and trial.outcome == "measured" else None

    def base(self, candidate: Candidate) -> Trial | None:
        return self.trials.get(candidate.follows) if candidate.follows else None


def cannot_win(candidate: Candidate, evidence: Evidence) -> str | None:
    """In words; None where only a trial can tell."""
    for rule in _RULES:
        if why := rule(candidate, evidence):
            return why
    return None


def _base_fails(candidate: Candidate, evidence: Evidence) -> str | None:
    """A graph, a mode or a switch begins with the same compiling."""
    base = evidence.base(candidate)
    if base is None or base.outcome == "measured" or candidate.strategy.marks:
        return None
    if not base.name.startswith(candidate.strategy.form):
        return None  # parts may compile where the whole does not
    if is_recorded(base) and not candidate.strategy.graph:
        return None  # it may be the graph that fails
    if candidate.strategy.dynamic != "auto" and not candidate.strategy.graph:
        return None  # sizes treated otherwise make other code
    return f"{base.name}, which it builds on, is no candidate: {base.outcome}"


def _kernels_too_slow(candidate: Candidate, evidence: Evidence) -> str | None:
    """A graph takes launches away, and leaves the kernels as they are."""
    base, best = evidence.base(candidate), evidence.leader.step_ms
    if (
        evidence.objective.kind != "step"
        or not _records(candidate)
        or _tunes(candidate)
    ):
        return None
    if base is None or base.kernel_ms is None or best is None or is_recorded(base):
        return None
    if base.kernel_ms < _CLOSE * best:
        return None
    return (
        f"a graph cannot be faster than its kernels: those of {base.name} take"
        f" {base.kernel_ms:.3g} ms, a step of {evidence.leader.name} {best:.3g} ms"
    )


def _same_kernels(candidate: Candidate, evidence: Evidence) -> str | None:
    """Tried only where forms are recorded first: the graph works."""
    base = evidence.base(candidate)
    if (
        evidence.objective.kind != "step"
        or _tunes(candidate)
        or candidate.strategy.graph
    ):
        return None
    if base is None or base.outcome != "measured" or not is_recorded(base):
        return None
    return f"{base.name} launches the same kernels all at once, and works"


def _starts_too_late(candidate: Candidate, evidence: Evidence) -> str | None:
    base, best = evidence.base(candidate), evidence.objective.value(evidence.leader)
    if not evidence.objective.needs_cold_starts or base is None or best is None:
        return None
    if base.start_s is None or not (_records(candidate) or _tunes(candidate)):
        return None
    if evidence.objective.kind == "first" and evidence.leader.name == "eager":
        return None  # whose first call nobody beats: others count if they are faster
    if base.start_s < _CLOSE * best:
        return None
    return (
        f"it compiles all that {base.name} does, which takes {base.start_s:.3g} s:"
        f" {evidence.leader.name} is done in {best:.3g} s"
    )


def _nested_is_full(candidate: Candidate, evidence: Evidence) -> str | None:
    if candidate.strategy.form != "nested" or evidence.objective.kind != "step":
        return None
    if evidence.full is None:
        return None
    return "it shortens compiling, not steps, and full compiles"


def _one_graph(candidate: Candidate, evidence: Evidence) -> str | None:
    if candidate.strategy.form != "core" or evidence.objective.needs_cold_starts:
        return None
    if evidence.full is None:
        return None
    counts = evidence.full.facts.get("counts") or {}
    if counts.get("graphs") != 1 or counts.get("recompiles"):
        return None
    return "full compiles the whole target as one graph"


def _little_to_tune(candidate: Candidate, evidence: Evidence) -> str | None:
    if not _tunes(candidate):
        return None
    share = evidence.probe.get("matmul_share")
    if share is not None and share < _FEW:
        return f"matrix products take {share:.0%} of the time: there is little to tune"
    if evidence.probe.get("bound") == "launch" and not _records(candidate):
        return "steps wait for launches, not for kernels that tuning makes faster"
    return None


def _little_generated(candidate: Candidate, evidence: Evidence) -> str | None:
    """Switches change the kernels that Inductor writes, and no library's."""
    base = evidence.base(candidate)
    if candidate.stage == "forms" or base is None or evidence.objective.kind != "step":
        return None
    if base.generated_ms is None or not base.step_ms:
        return None
    share = base.generated_ms / base.step_ms
    if share * _BEST_SWITCH >= 1 - _WORTH:
        return None
    return (
        f"the kernels that Inductor wrote take {share:.0%} of a step of {base.name}:"
        " switches that make them faster would hardly show"
    )


_RULES: tuple[Callable[[Candidate, Evidence], str | None], ...] = (
    _base_fails,
    _kernels_too_slow,
    _same_kernels,
    _starts_too_late,
    _nested_is_full,
    _one_graph,
    _little_to_tune,
    _little_generated,
)


def is_recorded(trial: Trial) -> bool:
    """Whether the whole step was in a graph."""
    return trial.name.partition(":")[0].endswith(f"+{strategies.GRAPH}")


def _records(candidate: Candidate) -> bool:
    """Whether CUDA graphs are recorded, by torchproof or by Inductor."""
    strategy = candidate.strategy
    return strategy.graph or strategies.records_graphs(strategy.arguments)


def _tunes(candidate: Candidate) -> bool:
    """Whether Inductor tries many kernels for one matrix product."""
    return bool(options_of(candidate).get("max_autotune"))


def options_of(candidate: Candidate) -> dict[str, Any]:
    """Inductor's options, those that a mode stands for included."""
    arguments = candidate.strategy.arguments
    own = strategies.MODE_OPTIONS.get(arguments.get("mode") or "default", {})
    return {**own, **arguments.get("options", {})}
