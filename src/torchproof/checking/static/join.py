"""Suspicions and what a run showed, as one list of findings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchproof.checking.static.suspicion import Suspicion
from torchproof.records import Finding

_BREAKS = {"graph_break", "skipped_frame"}
_UNDER_FULLGRAPH = "CE704"  # a break, which fullgraph=True makes an error
# What a run places on its line. All else belongs to the function as a whole.
_PLACED = {
    *_BREAKS,
    "compile_error",
    "host_sync",
    "cudagraph_lifetime",
    "cudagraph_skip",
}


@dataclass(frozen=True)
class RunEvidence:
    """What a run can say about lines of source; files are absolute paths.

    `traced` is None where nothing was observed. `stopped` are lines at which tracing
    ended for good. `unseen` names, for codes that this run could not have shown, the
    part of a check that would have.
    """

    traced: Mapping[str, frozenset[int]] | None = None
    stopped: frozenset[tuple[str, int]] = frozenset()
    calls: int | None = None
    unseen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Joined:
    """All findings, and the suspicions that the run left open."""

    findings: tuple[Finding, ...]
    undecided: tuple[Suspicion, ...] = ()


def join(
    suspicions: Iterable[Suspicion], findings: Iterable[Finding], run: RunEvidence
) -> Joined:
    """One finding for what the source suggests and the run shows.

    What the run refutes is left out. What it could not decide is a hazard that says
    why, of low severity: nothing has gone wrong.
    """
    merged, hazards, undecided = list(findings), [], []
    places = [each.file and absolute(each.file) for each in merged]
    for suspicion in suspicions:
        file = suspicion.finding.file and absolute(suspicion.finding.file)
        near = [i for i, place in enumerate(places) if place and place == file]
        matching = [i for i in near if _shows(merged[i], suspicion)]
        for index in matching:
            merged[index] = _confirmed(merged[index], suspicion)
        if matching:
            continue
        if suspicion.certain:
            hazards.append(suspicion.finding)
        elif why := _undecided(suspicion, run):
            hazards.append(_hazard(suspicion.finding, why))
            undecided.append(suspicion)
    return Joined((*merged, *_once(hazards)), tuple(undecided))


def without_run(suspicions: Iterable[Suspicion]) -> Joined:
    """The findings where nothing was run: as the source gives them."""
    every = tuple(suspicions)
    return Joined(_once(s.finding for s in every), every)


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(f.identity, f.line): f for f in findings}.values())


def _shows(finding: Finding, suspicion: Suspicion) -> bool:
    """Whether a finding in the same file is what was suspected there."""
    suspected, codes = suspicion.finding, suspicion.shown_by
    if suspected.suspects in _BREAKS:
        codes = (*codes, _UNDER_FULLGRAPH)
    if not codes or not finding.code.startswith(codes):
        return False
    if finding.line in _lines(suspicion):
        return True
    functions = (suspected.function, *suspicion.shown_in)
    return finding.kind not in _PLACED and finding.function in functions


def _lines(suspicion: Suspicion) -> range:
    first = suspicion.finding.line
    return range(first, max(first, suspicion.last_line) + 1) if first else range(0)


def _confirmed(finding: Finding, suspicion: Suspicion) -> Finding:
    """What was measured stays; what the source alone tells is added as evidence."""
    suspected = suspicion.finding
    evidence = f"read in the source: {suspected.message} ({suspected.code})"
    more = (
        ()
        if suspected.code == finding.code or evidence in finding.evidence
        else (evidence,)
    )
    return replace(finding, origin="both", evidence=(*finding.evidence, *more))


def _undecided(suspicion: Suspicion, run: RunEvidence) -> str | None:
    """Why the run says nothing about a suspicion; None where it refutes it."""
    suspected = suspicion.finding
    if run.traced is None or suspected.file is None:
        return "nothing was run that would show it"
    file, lines = absolute(suspected.file), _lines(suspicion)
    if part := _missing_part(suspicion.shown_by, run.unseen):
        return f"part {part}, which would show it, was not done"
    if run.traced.get(file, frozenset()).isdisjoint(lines):
        return "this run did not compile this line"
    if any((file, line) in run.stopped for line in lines):
        return "this run stopped compiling on this line for another reason"
    if (run.calls or 0) < suspicion.calls:
        calls = "1 call" if run.calls == 1 else f"{run.calls or 0} calls"
        return f"this run made {calls}, it takes {suspicion.calls} to show"
    return None


def _missing_part(shown_by: tuple[str, ...], unseen: Mapping[str, str]) -> str | None:
    """The part that was not done, if every code that would show it needs one."""
    parts = []
    for shown in shown_by:
        named = [p for code, p in unseen.items() if shown.startswith(code)]
        if not named:
            return None
        parts += named
    return parts[0] if parts else None


def _hazard(suspected: Finding, why: str) -> Finding:
    kind = suspected.suspects if suspected.kind == "hazard" else suspected.kind
    return replace(
        suspected,
        kind="hazard",
        suspects=kind,
        severity="low",
        message=f"{suspected.message}; {why}",
    )


def absolute(file: str) -> str:
    return os.path.realpath(file)
