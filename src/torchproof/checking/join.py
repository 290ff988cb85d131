"""Merges the suspicions from the source with the findings of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchproof.checking.rules import by_code
from torchproof.checking.suspicions import Reading, Suspicion
from torchproof.records import Finding, Part


@dataclass(frozen=True)
class RunEvidence:
    """What a run shows about lines of source. Files are absolute paths.

    `traced` is None if nothing was observed. `stopped` are the lines where tracing
    ended for good. `unseen` maps codes that this run could not show to the part of the
    check that would show them.
    """

    traced: Mapping[str, frozenset[int]] | None = None
    stopped: frozenset[tuple[str, int]] = frozenset()
    calls: int | None = None
    unseen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Joined:
    """All findings, the suspicions that the run did not decide, and what was read.

    `failure` says why the source was not read.
    """

    findings: tuple[Finding, ...]
    undecided: tuple[Suspicion, ...] = ()
    read: Reading = field(default_factory=Reading)
    failure: Part | None = None
    interrupted: bool = False
    seconds: float | None = None  # what reading took


def join(
    suspicions: Iterable[Suspicion], findings: Iterable[Finding], run: RunEvidence
) -> Joined:
    """Merges each suspicion with the finding of the run that confirms it.

    Drops a suspicion that the run refutes. A suspicion that the run could not decide
    becomes a hazard of low severity whose message gives the reason.
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
    """The findings of the source, if nothing was run."""
    every = tuple(suspicions)
    return Joined(_once(s.finding for s in every), every)


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(f.identity, f.line): f for f in findings}.values())


def _shows(finding: Finding, suspicion: Suspicion) -> bool:
    """Whether a finding in the same file confirms the suspicion."""
    suspected, codes = suspicion.finding, suspicion.shown_by
    if _is_break_at(finding, suspected):
        return True  # one line, one finding: which of its causes comes first varies
    if not codes or not finding.code.startswith(codes):
        return False
    if finding.line in _lines(suspicion):
        return True
    functions = (suspected.function, *suspicion.shown_in)
    placed = by_code(finding.code).placed
    return not placed and finding.function in functions


def _is_break_at(finding: Finding, suspected: Finding) -> bool:
    """Whether the run breaks the graph at the line of a suspected graph break."""
    kinds = {"graph_break", "skipped_frame"}
    both = finding.kind in kinds and suspected.suspects == "graph_break"
    return both and finding.line == suspected.line


def _lines(suspicion: Suspicion) -> range:
    first = suspicion.finding.line
    return range(first, max(first, suspicion.last_line) + 1) if first else range(0)


def _confirmed(finding: Finding, suspicion: Suspicion) -> Finding:
    """The finding of the run, with the suspicion added as evidence, and its edit."""
    suspected = suspicion.finding
    known, edit = finding.remedy, suspected.remedy
    unknown = known is None or known.kind == "none"
    if unknown and suspected.code == finding.code and edit and edit.replacements:
        finding = replace(finding, remedy=edit, fix=edit.text)
    evidence = f"also found in the source: {suspected.message} ({suspected.code})"
    more = (
        ()
        if suspected.code == finding.code or evidence in finding.evidence
        else (evidence,)
    )
    return replace(finding, origin="both", evidence=(*finding.evidence, *more))


def _undecided(suspicion: Suspicion, run: RunEvidence) -> str | None:
    """Why the run does not decide a suspicion; None if it refutes the suspicion."""
    suspected = suspicion.finding
    if run.traced is None or suspected.file is None:
        return "no run has checked it"
    file, lines = absolute(suspected.file), _lines(suspicion)
    if part := _missing_part(suspicion.shown_by, run.unseen):
        return f"not confirmed: part {part} of the check was not run"
    if run.traced.get(file, frozenset()).isdisjoint(lines):
        return "not confirmed: this run did not compile this line"
    if any((file, line) in run.stopped for line in lines):
        return "not confirmed: this run stopped compiling here for another reason"
    if (run.calls or 0) < suspicion.calls:
        calls = "1 call" if run.calls == 1 else f"{run.calls or 0} calls"
        return f"not confirmed: this run made {calls}, it needs {suspicion.calls}"
    return None


def _missing_part(shown_by: tuple[str, ...], unseen: Mapping[str, str]) -> str | None:
    """The part that was not run, if every code that would confirm it needs one."""
    parts = []
    for shown in shown_by:
        if shown not in unseen:
            return None
        parts.append(unseen[shown])
    return parts[0] if parts else None


def _hazard(suspected: Finding, why: str) -> Finding:
    kind = suspected.suspects if suspected.kind == "hazard" else suspected.kind
    return replace(
        suspected,
        kind="hazard",
        suspects=kind,
        severity="low",
        evidence=(*suspected.evidence, why),
    )


def absolute(file: str) -> str:
    return os.path.realpath(file)
