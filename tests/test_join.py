"""Suspicions from the source, decided by what a run showed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from torchproof.checking.join import RunEvidence, absolute, join, without_run
from torchproof.checking.suspicions import Suspicion
from torchproof.records.run import Finding

FILE = absolute("model.py")
SUSPECTED = Finding(
    code="GB101",
    kind="hazard",
    suspects="graph_break",
    severity="high",
    message="`x.item()` would split the graph",
    cause="it needs the value",
    fix="keep it a tensor",
    file="model.py",
    line=5,
    function="Net.forward",
    owner="user",
    origin="static",
)
ITEM = Suspicion(SUSPECTED, last_line=6, shown_by=("GB101", "CE704"))
SHOWN = replace(
    SUSPECTED,
    kind="graph_break",
    suspects=None,
    severity="medium",
    message="`x.item()` splits the graph, in every call",
    origin="dynamic",
    count=3,
    cost_us=12.5,
)
# A run of two calls that traced the lines before, at and after the suspicion.
TRACED = RunEvidence({FILE: frozenset({4, 5, 7})}, calls=2)


def test_what_the_run_shows_is_one_finding_with_what_was_measured() -> None:
    joined = join([ITEM], [SHOWN], TRACED)
    assert joined.findings == (replace(SHOWN, origin="both"),)
    assert joined.undecided == ()


@pytest.mark.parametrize("line", [5, 6])
def test_any_line_of_the_statement_will_do(line: int) -> None:
    [found] = join([ITEM], [replace(SHOWN, line=line)], TRACED).findings
    assert found.origin == "both" and found.line == line


def test_an_absolute_path_is_the_same_file() -> None:
    [found] = join([ITEM], [replace(SHOWN, file=FILE)], TRACED).findings
    assert found.origin == "both"


@pytest.mark.parametrize(
    "other",
    [
        {"line": 4},
        {"line": 7},
        {"file": "other.py"},
        {"code": "RC201", "kind": "recompile"},
        {"file": None},
    ],
)
def test_another_place_or_code_shows_nothing(other: dict[str, Any]) -> None:
    found = join([ITEM], [replace(SHOWN, **other)], TRACED).findings
    assert [f.origin for f in found] == ["dynamic"], "traced and not shown: refuted"


def test_a_break_for_another_reason_at_the_line_is_the_same_finding() -> None:
    [found] = join([ITEM], [replace(SHOWN, code="GB104")], TRACED).findings
    assert (found.code, found.origin) == ("GB104", "both")
    assert f"({ITEM.finding.code})" in found.evidence[-1]


def test_a_recompile_is_shown_anywhere_in_its_function() -> None:
    counter = replace(SUSPECTED, code="RC213", suspects="recompile")
    shown = replace(SHOWN, code="RC213", kind="recompile", line=2)
    suspicion = Suspicion(counter, 5, ("RC213", "RC290"), calls=2)
    assert [f.origin for f in join([suspicion], [shown], TRACED).findings] == ["both"]
    elsewhere = replace(shown, function="Net.other")
    [found] = join([suspicion], [elsewhere], TRACED).findings
    assert found.origin == "dynamic"


def test_a_break_that_fullgraph_makes_an_error_is_shown_by_the_error() -> None:
    error = replace(SHOWN, code="CE704", kind="compile_error")
    [found] = join([ITEM], [error], TRACED).findings
    assert (found.code, found.origin) == ("CE704", "both")
    recompile = replace(ITEM, shown_by=("RC213",))
    assert join([recompile], [error], TRACED).findings == (error,)


def test_words_of_another_rule_become_evidence_once() -> None:
    mask = replace(SUSPECTED, code="GB103", message="`x[x > 0]` has no known size")
    suspicion = Suspicion(mask, 5, ("GB101", "GB103"))
    [found] = join([suspicion, suspicion, ITEM], [SHOWN], TRACED).findings
    [told] = found.evidence
    assert mask.message in told and "GB103" in told


def test_what_the_run_traced_without_a_finding_is_refuted() -> None:
    joined = join([ITEM], [], TRACED)
    assert joined.findings == () and joined.undecided == ()


@pytest.mark.parametrize(
    ("suspicion", "seen", "why"),
    [
        (ITEM, RunEvidence(), r"\brun\b"),
        (ITEM, RunEvidence({}, calls=9), r"\bcompile\b"),
        (ITEM, RunEvidence({FILE: frozenset({4, 7})}, calls=9), r"\bcompile\b"),
        (ITEM, replace(TRACED, stopped=frozenset({(FILE, 5)})), r"\bstopped\b"),
        (replace(ITEM, calls=3), TRACED, r"\b2 calls\b.*\b3\b"),
        (
            replace(ITEM, shown_by=("CG301",)),
            replace(TRACED, unseen={"CG301": "lifetimes"}),
            r"\blifetimes\b",
        ),
    ],
)
def test_what_the_run_cannot_decide_is_a_hazard_that_says_why(
    suspicion: Suspicion, seen: RunEvidence, why: str
) -> None:
    joined = join([suspicion], [], seen)
    [found] = joined.findings
    message, _, reason = found.message.rpartition("; ")
    assert message == SUSPECTED.message and re.search(why, reason)
    assert found == replace(SUSPECTED, severity="low", message=found.message)
    assert (found.kind, found.suspects) == ("hazard", "graph_break")
    assert found.identity == SUSPECTED.identity
    assert joined.undecided == (suspicion,)


def test_a_part_that_was_not_done_matters_only_if_nothing_else_shows_it() -> None:
    seen = replace(TRACED, unseen={"CG301": "lifetimes"})
    assert not join([replace(ITEM, shown_by=("CG301", "GB101"))], [], seen).findings


def test_what_is_certain_stands_as_it_is() -> None:
    certain = replace(SUSPECTED, kind="config", suspects=None, severity="medium")
    suspicion = Suspicion(certain, 5, certain=True)
    assert join([suspicion], [], TRACED).findings == (certain,)


def test_one_place_is_told_once_and_two_places_twice() -> None:
    below = replace(ITEM, finding=replace(SUSPECTED, line=9))
    found = join([ITEM, ITEM, below], [], RunEvidence()).findings
    assert [f.line for f in found] == [5, 9]
    assert [f.line for f in without_run([ITEM, ITEM, below]).findings] == [5, 9]


def test_alone_a_suspicion_has_its_own_severity() -> None:
    joined = without_run([ITEM])
    assert joined.findings == (SUSPECTED,) and joined.undecided == (ITEM,)
