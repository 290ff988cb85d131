"""Reasons to skip a candidate: earlier trials bound what it can reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof import strategies
from torchproof.records import Trial
from torchproof.tuning.candidate import Candidate
from torchproof.tuning.objectives import Objective

_CLOSE = 0.99  # a candidate bounded above this share of the best step is skipped
_WORTH = 0.98  # a gain below 2 percent of the best step is not worth a trial
_BEST_SWITCH = 0.15  # assumed largest gain of a setting on the kernels it changes
_FEW = 0.1  # below this share of matrix products, tuning them does not pay


@dataclass(frozen=True)
class Evidence:
    """The trials so far; `leader` is the best of them, or eager."""

    objective: Objective
    probe: Mapping[str, Any]
    trials: Mapping[str, Trial]
    leader: Trial

    @property
    def full(self) -> Trial | None:
        """The trial of the whole compiled target, with or without a graph."""
        trial = self.trials.get("full") or self.trials.get("full+graph")
        return trial if trial and trial.outcome == "measured" else None

    def base(self, candidate: Candidate) -> Trial | None:
        return self.trials.get(candidate.follows) if candidate.follows else None


def cannot_win(candidate: Candidate, evidence: Evidence) -> str | None:
    """The reason to skip a candidate; None if it has to be tried."""
    for rule in _RULES:
        if why := rule(candidate, evidence):
            return why
    return None


def _base_fails(candidate: Candidate, evidence: Evidence) -> str | None:
    """A graph, a mode or a setting compiles the same code first."""
    base = evidence.base(candidate)
    if base is None or base.outcome == "measured" or candidate.strategy.marks:
        return None
    if not base.name.startswith(candidate.strategy.form):
        return None  # a part may compile even if the whole does not
    if is_recorded(base) and not candidate.strategy.graph:
        return None  # the graph may be what failed
    if candidate.strategy.dynamic != "auto" and not candidate.strategy.graph:
        return None  # other size handling generates other code
    return f"it builds on {base.name}, whose outcome is: {base.outcome}"


def _kernels_too_slow(candidate: Candidate, evidence: Evidence) -> str | None:
    """A CUDA graph removes launch time and leaves the kernels as they are."""
    base, best = evidence.base(candidate), evidence.leader.step_ms
    if (
        evidence.objective.kind != "step"
        or not _records(candidate)
        or candidate.tunes_products
        or candidate.switches  # they change the kernels
    ):
        return None
    if base is None or base.kernel_ms is None or best is None or is_recorded(base):
        return None
    if base.kernel_ms < _CLOSE * best:
        return None
    return (
        f"a CUDA graph cannot be faster than its kernels: those of {base.name} take"
        f" {base.kernel_ms:.3g} ms, a step of {evidence.leader.name} {best:.3g} ms"
    )


def _same_kernels(candidate: Candidate, evidence: Evidence) -> str | None:
    """Applies where graphs are tried first, and the graph works."""
    base = evidence.base(candidate)
    if (
        evidence.objective.kind != "step"
        or candidate.tunes_products
        or candidate.strategy.graph
    ):
        return None
    if base is None or base.outcome != "measured" or not is_recorded(base):
        return None
    return f"{base.name} works and launches the same kernels in one CUDA graph"


def _starts_too_late(candidate: Candidate, evidence: Evidence) -> str | None:
    base, best = evidence.base(candidate), evidence.objective.value(evidence.leader)
    if not evidence.objective.needs_cold_starts or base is None or best is None:
        return None
    if base.start_s is None or not (_records(candidate) or candidate.tunes_products):
        return None
    if evidence.objective.kind == "first" and evidence.leader.name == "eager":
        return None  # no compiled first call beats eager; faster steps count
    if base.start_s < _CLOSE * best:
        return None
    return (
        f"it compiles at least what {base.name} compiles, which takes"
        f" {base.start_s:.3g} s; {evidence.leader.name} needs {best:.3g} s in all"
    )


def _nested_is_full(candidate: Candidate, evidence: Evidence) -> str | None:
    if candidate.strategy.form != "nested" or evidence.objective.kind != "step":
        return None
    if evidence.full is None:
        return None
    return "it shortens compilation, not steps, and full compiles"


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
    if not candidate.tunes_products:
        return None
    share = evidence.probe.get("matmul_share")
    if share is not None and share < _FEW:
        return f"matrix products take only {share:.0%} of the time"
    if evidence.probe.get("bound") == "launch" and not _records(candidate):
        return "steps are bound by launches, and tuning only makes kernels faster"
    return None


def _little_generated(candidate: Candidate, evidence: Evidence) -> str | None:
    """Some switches change generated kernels, not those of libraries."""
    base = evidence.base(candidate)
    if not _changes_only(candidate, "kernels") or evidence.objective.kind != "step":
        return None
    if base is None or base.generated_ms is None or not base.step_ms:
        return None
    share = base.generated_ms / base.step_ms
    if share * _BEST_SWITCH >= 1 - _WORTH:
        return None
    return (
        f"generated kernels take only {share:.0%} of a step of {base.name}, so Inductor"
        " settings can gain little"
    )


def _little_to_overlap(candidate: Candidate, evidence: Evidence) -> str | None:
    """A dependent launch shortens the gap before a generated kernel, and its start."""
    base = evidence.base(candidate)
    if not _changes_only(candidate, "launches") or evidence.objective.kind != "step":
        return None
    if evidence.probe.get("bound") == "launch" and not _records(candidate):
        return "steps are bound by launches from the CPU, which take as long with it"
    if base is None or base.generated_ms is None or not base.step_ms:
        return None
    busy = min(1.0, (base.kernel_ms or 0.0) / base.step_ms)
    generated = base.generated_ms / base.step_ms
    if generated and 1 - busy + _BEST_SWITCH * generated >= 1 - _WORTH:
        return None
    return (
        f"kernels take {busy:.0%} of a step of {base.name}, generated ones"
        f" {generated:.0%}, so overlapping them can gain little"
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
    _little_to_overlap,
)


def is_recorded(trial: Trial) -> bool:
    """Whether the whole step ran in one CUDA graph."""
    return trial.name.partition(":")[0].endswith(f"+{strategies.GRAPH}")


def _records(candidate: Candidate) -> bool:
    """Whether CUDA graphs are recorded, by torchproof or by Inductor."""
    strategy = candidate.strategy
    return strategy.graph or strategies.records_graphs(strategy.arguments)


def _changes_only(candidate: Candidate, what: str) -> bool:
    return {switch.changes for switch in candidate.switches} == {what}
