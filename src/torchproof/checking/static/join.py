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
class Seen:
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
    suspicions: Iterable[Suspicion], findings: Iterable[Finding], seen: Seen
) -> Joined:
    """One finding for what the source suggests and the run shows.

    What the run refutes is left out. What it could not decide is a hazard that says
    why, of low severity: nothing has gone wrong.
    """
    shown, hazards, undecided = list(findings), [], []
    places = [each.file and absolute(each.file) for each in shown]
    for suspicion in suspicions:
        file = suspicion.finding.file and absolute(suspicion.finding.file)
        near = [i for i, place in enumerate(places) if place and place == file]
        matching = [i for i in near if _shows(shown[i], suspicion)]
        for index in matching:
            shown[index] = _confirmed(shown[index], suspicion)
        if matching:
            continue
        if suspicion.certain:
            hazards.append(suspicion.finding)
        elif why := _undecided(suspicion, seen):
            hazards.append(_hazard(suspicion.finding, why))
            undecided.append(suspicion)
    return Joined((*shown, *_once(hazards)), tuple(undecided))


def alone(suspicions: Iterable[Suspicion]) -> Joined:
    """The findings where nothing was run: as the source gives them."""
    every = tuple(suspicions)
    return Joined(_once(s.finding for s in every), every)


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(f.identity, f.line): f for f in findings}.values())


def _shows(found: Finding, suspicion: Suspicion) -> bool:
    """Whether a finding in the same file is what was suspected there."""
    suspected, codes = suspicion.finding, suspicion.shown_by
    if suspected.suspects in _BREAKS:
        codes = (*codes, _UNDER_FULLGRAPH)
    if not codes or not found.code.startswith(codes):
        return False
    if found.line in _lines(suspicion):
        return True
    functions = (suspected.function, *suspicion.shown_in)
    return found.kind not in _PLACED and found.function in functions


def _lines(suspicion: Suspicion) -> range:
    first = suspicion.finding.line
    return range(first, max(first, suspicion.last_line) + 1) if first else range(0)


def _confirmed(found: Finding, suspicion: Suspicion) -> Finding:
    """What was measured stays; what the source alone tells is added as evidence."""
    suspected = suspicion.finding
    told = f"read in the source: {suspected.message} ({suspected.code})"
    more = () if suspected.code == found.code or told in found.evidence else (told,)
    return replace(found, origin="both", evidence=(*found.evidence, *more))


def _undecided(suspicion: Suspicion, seen: Seen) -> str | None:
    """Why the run says nothing about a suspicion; None where it refutes it."""
    suspected = suspicion.finding
    if seen.traced is None or suspected.file is None:
        return "nothing was run that would show it"
    file, lines = absolute(suspected.file), _lines(suspicion)
    if part := _missing_part(suspicion.shown_by, seen.unseen):
        return f"part {part}, which would show it, was not done"
    if seen.traced.get(file, frozenset()).isdisjoint(lines):
        return "this run did not compile this line"
    if any((file, line) in seen.stopped for line in lines):
        return "this run stopped compiling on this line for another reason"
    if (seen.calls or 0) < suspicion.calls:
        calls = "1 call" if seen.calls == 1 else f"{seen.calls or 0} calls"
        return f"this run made {calls}, it takes {suspicion.calls} to show"
    return None


def _missing_part(shown_by: tuple[str, ...], unseen: Mapping[str, str]) -> str | None:
    """The part that was not done, if every code that would show it needs one."""
    parts = []
    for wanted in shown_by:
        named = [p for code, p in unseen.items() if wanted.startswith(code)]
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
