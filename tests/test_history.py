"""Which earlier run belongs to a check, and what of it is gone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import history
from torchproof.records import store
from torchproof.records.run import Baseline, Finding, Measurement, Part, Run
from torchproof.report import earlier_run

BREAK = Finding(
    code="GB101",
    kind="graph_break",
    severity="high",
    message="`x.item()` splits the graph",
    cause="`x.item()` needs the value",
    fix="keep it a tensor",
    file="model.py",
    line=5,
    function="Net.forward",
)
HAZARD = replace(BREAK, code="GB104", kind="hazard", origin="static", severity="low")
DONE = {"static": Part("found"), "breaks": Part("found")}
QUICK = {"effort": "quick", "train": False}


def run(*findings: Finding, **changes: Any) -> Run:
    made = Run(
        id="20260102-0304-model",
        target="model.py:make",
        strategy="full",
        environment={"device": "cpu"},
        counts={"graph_breaks": len(findings)},
        findings=findings,
        parts=DONE,
        options=QUICK,
        started="2026-01-02T03:04:05",
    )
    return replace(made, **changes)


def compared(
    before: Run, after: Run, *, reached: bool = True, suspected: bool = False
) -> Run:
    return history.with_resolved(
        after,
        before,
        parts_of=lambda f: ["static" if f.origin == "static" else "breaks"],
        suspected=lambda finding: suspected,
        reached=lambda finding: reached,
    )


# -- what is gone ----------------------------------------------------------------------


MEANT = replace(BREAK, status="intentional")
TWIN = replace(BREAK, line=9)
MOVED = replace(BREAK, line=50, message="in 2 of 9 calls", severity="low")
KNOWN = replace(BREAK, source="    y = x.item()")
ALIKE = replace(KNOWN, line=7)
RENAMED = replace(KNOWN, function="Net.run", source="y = x.item()", line=9)
OTHER = replace(KNOWN, function="Net.other")
STATIC = {"options": {"effort": "static"}}


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        (run(BREAK, HAZARD), run(), [BREAK, HAZARD]),
        (run(BREAK), run(MOVED), []),
        # Open findings only, and each by itself.
        (run(MEANT), run(), []),
        (run(BREAK), run(MEANT), []),
        (run(BREAK, TWIN), run(BREAK), [TWIN]),
        (run(BREAK, TWIN), run(BREAK, TWIN), []),
        # In a function that has another name now, the same line is the same finding.
        (run(KNOWN), run(RENAMED), []),
        (run(KNOWN, ALIKE), run(RENAMED), [ALIKE]),
        (run(KNOWN), run(replace(RENAMED, source="z = x.item()")), [KNOWN]),
        (run(KNOWN, OTHER), run(OTHER), [KNOWN]),
        # A run that did not look resolves nothing.
        (run(BREAK), run(ending="interrupted"), []),
        (run(BREAK), run(ending="timeout"), []),
        (run(BREAK), run(error="the script ended with exit code 1"), []),
        (run(BREAK), run(parts={**DONE, "breaks": Part("skipped", "--skip")}), []),
        (run(BREAK), run(parts={**DONE, "breaks": Part("failed", "crashed")}), []),
        (run(BREAK), run(parts={}), []),
        # A static check reads other code than a run.
        (run(HAZARD), run(**STATIC), []),
        (run(HAZARD, **STATIC), run(), []),
        (run(HAZARD, **STATIC), run(**STATIC), [HAZARD]),
    ],
)
def test_absent_finding_is_resolved_if_the_run_looked_for_it(
    before: Run, after: Run, gone: list[Finding]
) -> None:
    found = compared(before, after).findings[len(after.findings) :]
    assert found == tuple(replace(f, status="resolved") for f in gone)


def test_finding_that_is_not_reached_or_still_suspected_is_not_resolved() -> None:
    for more in ({"reached": False}, {"suspected": True}):
        after = compared(run(BREAK), run(), **more)
        assert (after.findings, after.baseline and after.baseline.unjudged) == ((), 1)


# -- like with like --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({}, ()),
        ({"calls": {"float32[4]": 2, "float32[5]": 1}}, ("calls",)),
        ({"calls": {"float32[4]": 2}}, ("calls",)),
        ({"calls": {}, "counts": {"calls": 2}}, ("calls",)),
        ({"calls": {}, "counts": {"calls": 3}}, ()),  # an older record
        ({"target": "other.py:make"}, ("target",)),
        ({"target": "/elsewhere/model.py:make"}, ()),
        ({"environment": {"device": "cuda"}}, ("device",)),
        ({"options": {**QUICK, "train": True}}, ("settings",)),
        ({"options": {**QUICK, "effort": "normal"}}, ()),
        ({"environment": {"device": "cpu", "torch": "2.14.0"}}, ()),
    ],
)
def test_only_runs_of_the_same_calls_resolve_anything(
    change: dict[str, Any], difference: tuple[str, ...]
) -> None:
    made = {"calls": {"float32[4]": 3}, "counts": {"calls": 3}}
    before = run(BREAK, HAZARD, **made)
    after = compared(before, run(**{**made, **change}))
    assert after.baseline is not None
    assert after.baseline.differences == difference
    codes = {f.code for f in after.findings if f.status == "resolved"}
    read = {"GB104"} if difference != ("target",) else set()
    assert codes == (read if difference else {"GB101", "GB104"})
    assert after.baseline.unjudged == 2 - len(codes)
    again = Run.from_json(after.to_json())
    assert again.baseline == after.baseline


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ({"graphs": 3}, {"graphs": 15}, ("graphs",)),
        ({"graphs": 0}, {"graphs": 2}, ()),
        ({"graphs": 3, "skipped_frames": 2}, {"graphs": 5, "skipped_frames": 1}, ()),
        ({"graph_breaks": 0}, {"graph_breaks": 2}, ("graph_breaks",)),
        ({"recompiles": 4}, {"recompiles": 3}, ()),
        ({"recompiles": None}, {"recompiles": 3}, ()),
        ({"skipped_frames": 0}, {"skipped_frames": 1}, ("skipped_frames",)),
        ({"graphs": 1, "calls": 3}, {"graphs": 2, "calls": 4}, ()),
    ],
)
def test_what_got_worse_is_named(
    before: dict[str, int], after: dict[str, int], worse: tuple[str, ...]
) -> None:
    made = compared(run(BREAK, counts=before), run(counts=after))
    assert made.baseline is not None
    assert made.baseline.worse == worse
    sentences = earlier_run.verdict(made)
    assert bool(sentences) is bool(worse or made.baseline.differences)


def test_more_loud_findings_are_worse() -> None:
    other = replace(BREAK, key="other")
    made = compared(run(BREAK), run(other, BREAK, counts={"graph_breaks": 1}))
    assert made.baseline is not None and made.baseline.worse == ("findings",)
    quiet = compared(run(BREAK), run(replace(other, severity="low"), BREAK, counts={}))
    assert quiet.baseline is not None and quiet.baseline.worse == ()


def test_a_finding_of_an_older_record_is_known_by_its_place() -> None:
    plain = {n: v for n, v in BREAK.to_json().items() if n != "key"}
    older = Finding.from_json({**plain, "identity": "0123456789abcdef"})
    now = replace(BREAK, key="_.item()")
    made = compared(run(older), run(now))
    assert made.findings == (now,)
    assert made.baseline is not None
    assert now.identity in (made.baseline.identities or ())
    assert len(compared(run(older), run()).findings) == 1


# -- which run it is -------------------------------------------------------------------


def saved(folder: Path, made: Run, when: int) -> Run:
    made = store.save(made, folder)
    os.utime(folder / made.id / "run.json", (when, when))
    return made


def test_earlier_run_is_the_latest_complete_check_run_alike(
    tmp_path: Path,
) -> None:
    wanted = saved(tmp_path, run(BREAK), 20)
    saved(tmp_path, run(), 10)
    others: tuple[dict[str, Any], ...] = (
        {"target": "other.py:make"},
        {"verb": "bench"},
        {"ending": "interrupted"},
        {"error": "it failed"},
        {"options": {**QUICK, "train": True}},
    )
    for change in others:
        saved(tmp_path, run(**change), 30)
    (tmp_path / "20260102-0399-model").mkdir()
    (tmp_path / "20260102-0399-model" / "run.json").write_text("{")
    normal = {"effort": "normal", "train": False, "skip": ["latency"]}
    this = run(options=normal)
    assert history.latest(this, "model", tmp_path) == wanted
    none = run(target="none.py:make", options=normal)
    assert history.latest(none, "none", tmp_path) is None
    assert history.latest(run(options=QUICK), "model", tmp_path / "no") is None


def test_baseline_has_all_but_the_samples() -> None:
    row = Measurement("full", median_ms=1.5, rounds_ms=((1.0, 2.0),))
    low = replace(BREAK, severity="low")
    meant = replace(BREAK, status="intentional")
    short = history.for_comparison(run(BREAK, BREAK, low, meant, measurements=(row,)))
    assert short.findings == {"high": 2, "medium": 0, "low": 1}
    assert short.counts == {"graph_breaks": 4}
    assert short.measurements == (Measurement("full", median_ms=1.5),)
    assert Baseline.from_json(json.loads(json.dumps(short.to_json()))) == short
