"""Runs many programs and keeps those that differ from eager."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import state_limits
import torch
from state_programs import Call, Program, generate
from state_runs import SUBJECTS, Outcome, Subject, compare
from state_shrinking import script, shrink

LIMIT_S = 120  # for one program
COMPILED_GRAPH = "graph of torch.compile"


@dataclass(frozen=True)
class Failure:
    """A program that differs, as small as could be found."""

    subject: str
    seed: int
    mechanisms: tuple[str, ...]
    difference: str
    script: str


@dataclass
class Report:
    """What a number of programs came to; `counts` are sums of what the subject says."""

    subject: str
    programs: int = 0
    calls: int = 0
    changes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def search(name: str, seeds: Iterable[int]) -> Report:
    """Programs of these seeds, run in eager and as the subject of this name does."""
    subject, report = SUBJECTS[name], Report(name)
    excluded = state_limits.of(subject)
    torch.set_num_threads(1)
    for seed in seeds:
        program = generate(seed, excluded, subject.forms)
        if not subject.takes(program):
            continue
        outcome = _outcome(program, subject)
        calls = sum(isinstance(event, Call) for event in program.history)
        report.programs += 1
        report.calls += calls
        report.changes += len(program.history) - calls
        _count(report, outcome.facts)
        if outcome.difference is None:
            continue
        failure = _failure(program, subject)
        if failure is None:
            report.counts["wrong in torch.compile alone"] += 1
        else:
            report.failures.append(failure)
    return report


def _failure(program: Program, subject: Subject) -> Failure | None:
    """The smallest program that differs; None if torch alone has this difference."""

    def fails(each: Program) -> bool:
        is_possible = each.form in subject.forms
        return is_possible and _outcome(each, subject).difference is not None

    small = shrink(program, fails)
    outcome = _outcome(small, subject)
    if subject.name == COMPILED_GRAPH and not outcome.facts.get("replays"):
        # A step that is not recorded runs as the user compiled it.
        alone = _outcome(small, SUBJECTS["torch.compile"]).difference
        if alone is not None and alone.what == _what(outcome):
            return None
    difference = str(outcome.difference)
    text = script(small, subject.code, difference)
    return Failure(subject.name, program.seed, small.names, difference, text)


def _outcome(program: Program, subject: Subject) -> Outcome:
    with _limited():
        return compare(program, subject)


def _what(outcome: Outcome) -> str | None:
    return None if outcome.difference is None else outcome.difference.what


def _count(report: Report, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if isinstance(value, int):
            report.counts[name] += value
    for kind, _ in {*facts.get("stops", ()), *facts.get("fallbacks", ())}:
        report.reasons[kind] += 1


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """One program may not hold up the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"a program took longer than {LIMIT_S} s")

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
