"""Suspicions from the source, decided by what a run showed."""

from __future__ import annotations

import re
from dataclasses import replace

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


COUNTER = replace(SUSPECTED, code="RC213", suspects="recompile")
RECOMPILE = Suspicion(COUNTER, 5, ("RC213", "RC290"), calls=2)
RECOMPILED = replace(SHOWN, code="RC213", kind="recompile", line=2)
ERROR = replace(SHOWN, code="CE704", kind="compile_error")
# What was suspected, what the run showed, and where the finding then comes from.
CASES: dict[str, tuple[Suspicion, Finding, str]] = {
    "first line of the statement": (ITEM, SHOWN, "both"),
    "last line of the statement": (ITEM, replace(SHOWN, line=6), "both"),
    "absolute path": (ITEM, replace(SHOWN, file=FILE), "both"),
    "line above": (ITEM, replace(SHOWN, line=4), "dynamic"),
    "line below": (ITEM, replace(SHOWN, line=7), "dynamic"),
    "another file": (ITEM, replace(SHOWN, file="other.py"), "dynamic"),
    "no file": (ITEM, replace(SHOWN, file=None), "dynamic"),
    "another kind": (ITEM, replace(SHOWN, code="RC201", kind="recompile"), "dynamic"),
    "a break for another reason": (ITEM, replace(SHOWN, code="GB104"), "both"),
    "recompile in the function": (RECOMPILE, RECOMPILED, "both"),
    "recompile in another one": (
        *(RECOMPILE, replace(RECOMPILED, function="Net.other"), "dynamic"),
    ),
    "error of fullgraph": (ITEM, ERROR, "both"),
    "error that says nothing of it": (
        *(replace(ITEM, shown_by=("RC213",)), ERROR, "dynamic"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_finding_has_what_was_measured(name: str) -> None:
    suspicion, shown, origin = CASES[name]
    joined = join([suspicion], [shown], TRACED)
    [found] = joined.findings  # a suspicion that was traced and not shown is refuted
    assert replace(found, evidence=()) == replace(shown, origin=origin)
    assert joined.undecided == ()
    if shown.code == "GB104":
        assert f"({ITEM.finding.code})" in found.evidence[-1]


def test_words_of_another_rule_become_evidence_once() -> None:
    mask = replace(SUSPECTED, code="GB103", message="`x[x > 0]` has no known size")
    suspicion = Suspicion(mask, 5, ("GB101", "GB103"))
    [found] = join([suspicion, suspicion, ITEM], [SHOWN], TRACED).findings
    [line] = found.evidence
    assert mask.message in line and "GB103" in line


def test_what_the_run_traced_without_a_finding_is_refuted() -> None:
    joined = join([ITEM], [], TRACED)
    assert joined.findings == () and joined.undecided == ()
    # A part that was not run matters only if nothing else shows it.
    seen = replace(TRACED, unseen={"CG301": "lifetimes"})
    assert not join([replace(ITEM, shown_by=("CG301", "GB101"))], [], seen).findings


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
    assert found.message == SUSPECTED.message and re.search(why, found.evidence[-1])
    assert found == replace(SUSPECTED, severity="low", evidence=found.evidence)
    assert (found.kind, found.suspects) == ("hazard", "graph_break")
    assert found.identity == SUSPECTED.identity
    assert joined.undecided == (suspicion,)


def test_what_is_certain_stands_as_it_is() -> None:
    certain = replace(SUSPECTED, kind="config", suspects=None, severity="medium")
    suspicion = Suspicion(certain, 5, certain=True)
    assert join([suspicion], [], TRACED).findings == (certain,)


def test_one_place_is_one_finding_with_its_own_severity() -> None:
    below = replace(ITEM, finding=replace(SUSPECTED, line=9))
    for joined in (
        join([ITEM, ITEM, below], [], RunEvidence()),
        without_run([ITEM, ITEM, below]),
    ):
        assert [f.line for f in joined.findings] == [5, 9]
    assert without_run([ITEM]).findings == (SUSPECTED,)
    assert without_run([ITEM]).undecided == (ITEM,)
