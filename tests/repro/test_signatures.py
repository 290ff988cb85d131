"""Which failure of a run is taken, and what is expected of a program that shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from torchproof.packs.repro.assembly import ORACLES
from torchproof.packs.repro.failure_signature import choose_failure
from torchproof.records.run import Finding, Measurement, Run, Symptom, UserError

PRIVATE = ("/home/ada", "secret_model", "ada")


def finding(code: str, kind: str, **values: Any) -> Finding:
    known = {
        "code": code,
        "kind": kind,
        "severity": "high",
        "message": "something in secret_model is amiss",
        "cause": "a cause in secret_model",
        "fix": "rewrite secret_model",
        "file": "/home/ada/secret_model.py",
        "line": 12,
    }
    return Finding(**{**known, **values})


def run_of(*findings: Finding, **values: Any) -> Run:
    return Run("r1", "m.py:make", "as-written", {}, {}, findings=findings, **values)


PRINT = finding(
    "GB104",
    "graph_break",
    symptom=Symptom(
        "Failed to trace builtin operator",
        "Dynamo does not know how to trace builtin operator `print` with argument types"
        " ['str']",
        "GB0059",
    ),
)
FINDINGS = {
    "break": PRINT,
    "skip": replace(PRINT, kind="skipped_frame"),
    "recompile": finding(
        "RC210",
        "recompile",
        symptom=Symptom(text="n == 2 # x # m.py:18 in f"),
        count=9,
    ),
    "limit": finding(
        "RC290", "recompile_limit", symptom=Symptom(text="len(L['x']) == 2")
    ),
    "size compiled in": finding("DS603", "specialization"),
    "marked size": finding(
        "DS601",
        "specialization",
        symptom=Symptom("ConstraintViolationError", "Constraints violated"),
    ),
    "error": finding(
        "CE703",
        "compile_error",
        symptom=Symptom(
            "BackendCompilerFailed",
            "backend='secret_model' raised: ValueError: no '/home/ada/x' at 0x7f00 Set"
            " TORCHDYNAMO_VERBOSE=1 for",
        ),
    ),
    "nothing compiled": finding(
        "NC805", "no_op", symptom=Symptom("Data-dependent branching")
    ),
    "numerics": finding(
        "NM401",
        "numerics",
        symptom=Symptom(
            operation="torch.acosh",
            numerics={"verdict": "wrong", "max_rel_error": 0.25, "how": "value"},
        ),
    ),
    "infinity": finding(
        "NM401",
        "numerics",
        symptom=Symptom(numerics={"verdict": "wrong", "how": "infinity"}),
    ),
    "stale": finding("NM411", "stale_state", symptom=Symptom()),
    "slower": finding("SP501", "slowdown"),
    "compile time": finding("SP511", "compile_time"),
    "memory": finding("SP521", "memory"),
    "cudagraph skip": finding(
        "CG311",
        "cudagraph_skip",
        symptom=Symptom(
            text="mutated inputs (3 instances). Found from : \n File secret_model"
        ),
    ),
    "rerecord": finding("CG321", "cudagraph_rerecord", count=40),
    "lifetime": finding("CG301", "cudagraph_lifetime"),
    "sync": finding("CG341", "host_sync"),
}
# What measuring the compiled target showed, of the findings about that.
MEASURED: dict[str, dict[str, Any]] = {
    "slower": {"vs_eager": 0.4, "numerics": {"verdict": "same"}},
    "compile time": {"compile_s": {"total": 31.5}},
    "memory": {"peak_bytes": 300 << 20},
}


def test_finding_says_what_to_expect(snapshot: Callable[[str, str], None]) -> None:
    """Without names of the user; tests/snapshots has the signatures."""
    shown: dict[str, Any] = {}
    for name, found in FINDINGS.items():
        rows = (
            Measurement("eager", peak_bytes=100 << 20),
            Measurement("full", **MEASURED.get(name, {})),
        )
        signature = choose_failure(run_of(found, measurements=rows))
        assert signature.oracle in ORACLES and signature.finding is found
        shown[name] = {**asdict(signature), "finding": found.code}
    text = json.dumps(shown, indent=1, default=str)
    assert not [word for word in PRIVATE if word in text]
    snapshot("repro/signatures.json", text + "\n")


def test_the_most_severe_open_finding_is_taken() -> None:
    low = replace(PRINT, severity="low", line=1)
    cured = replace(PRINT, status="resolved", line=2)
    static, worst = replace(PRINT, origin="static"), replace(PRINT, line=3)
    assert choose_failure(run_of(low, cured, static, worst)).finding is worst


@pytest.mark.parametrize(
    ("selector", "line"),
    [
        ("GB104", 3),
        ("gb1", 3),
        ("RC", 7),
        ("GB104@secret_model.py:5", 5),
        ("GB104@secret_model.py", 3),
    ],
)
def test_a_code_or_a_place_chooses(selector: str, line: int) -> None:
    found = (
        replace(PRINT, line=3),
        replace(PRINT, line=5, severity="low"),
        replace(FINDINGS["recompile"], line=7),
    )
    symptom = choose_failure(run_of(*found), [selector])
    assert symptom.finding is not None
    assert symptom.finding.line == line


@pytest.mark.parametrize(
    ("found", "selectors", "why"),
    [
        (PRINT, ["CE7"], r"\bCE7\b.*\bGB104\b"),
        (replace(PRINT, status="intentional"), [], "r1"),
        (finding("GB104", "hazard"), [], r"\bsource\b"),  # a suspicion
        (finding("GB104", "config"), [], r"\bsource\b"),
        (replace(PRINT, symptom=None), [], "earlier version"),
    ],
)
def test_what_is_no_failure_of_the_run_is_refused(
    found: Finding, selectors: list[str], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        choose_failure(run_of(found), selectors)


def test_a_run_that_did_not_end_hangs() -> None:
    symptom = choose_failure(run_of(PRINT, ending="timeout", options={"timeout_s": 30}))
    assert (symptom.oracle, symptom.expected["seconds"]) == ("hang", 30.0)
    assert choose_failure(run_of(PRINT, ending="timeout"), ["GB"]).oracle == "breaks"


def test_an_error_that_only_a_measurement_met() -> None:
    error = "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ one"
    rows = (Measurement("eager"), Measurement("full", error=error))
    symptom = choose_failure(run_of(measurements=rows))
    assert symptom.expected["error"] == "InductorError"
    assert "backend" not in symptom.expected  # code must be generated to see it
    with pytest.raises(UserError):
        choose_failure(run_of(measurements=(Measurement("eager", error=error),)))
    placed = Measurement("full", error="/tmp/a/cx.py:731: AssertionError: stride 1==8")
    symptom = choose_failure(run_of(measurements=(Measurement("eager"), placed)))
    assert symptom.expected["error"] == "AssertionError"
    assert symptom.expected["message"] == "stride N==N"


# Texts of findings of runs that were saved without symptoms, and what follows of them.
OLDER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "break": (
        {
            "code": "GB101",
            "kind": "graph_break",
            "evidence": [
                "GB0170 https://meta-pytorch.github.io/gb0170.html",
                "torch: Data-dependent branching: Detected data-dependent branching",
                "in m.py:4 forward: if x.sum() > 0:",
            ],
        },
        {"type": "Data-dependent branching", "id": "GB0170", "skips": False},
    ),
    "recompile": (
        {
            "code": "RC210",
            "kind": "recompile",
            "count": 5,
            "evidence": ["1/0: L['self'].n == 2", "and 2 more"],
        },
        {"kind": "value", "times": 3},
    ),
    "limit": (
        {
            "code": "RC290",
            "kind": "recompile_limit",
            "evidence": ["last guard to fail: len(L['x']) == 2", "GB0039 https://"],
        },
        {"limit": True, "kind": "length"},
    ),
    "marked size": (
        {
            "code": "DS601",
            "kind": "specialization",
            "evidence": ["ConstraintViolationError: Constraints violated"],
        },
        {"error": "ConstraintViolationError", "backend": "eager"},
    ),
    "size compiled in": (
        {"code": "DS603", "kind": "specialization", "evidence": ["size 4"]},
        {"specialized": True},
    ),
    "error": (
        {
            "code": "CE703",
            "kind": "compile_error",
            "evidence": ["torch._inductor.exc.InductorError: stride 1==8", "GB0001 u"],
        },
        {"error": "InductorError", "message": "stride N==N", "id": "GB0001"},
    ),
    "nothing compiled": (
        {
            "code": "NC805",
            "kind": "no_op",
            "cause": "every frame was skipped, first because of: Dynamic control flow",
        },
        {"because": "Dynamic control flow", "called": True},
    ),
    "wrong": (
        {
            "code": "NM401",
            "kind": "numerics",
            "message": "f computes another value (NaN where eager has none)",
            "cause": "the code for torch.acosh is wrong",
            "evidence": ["relative error 2.5e-01, eager's own 0, against eager"],
        },
        {"how": "nan", "error": 0.25},
    ),
    "stale": (
        {
            "code": "NM411",
            "kind": "stale_state",
            "evidence": ["the outputs differ from eager's in every call; they agree"],
        },
        {"how": "value", "later": False},
    ),
    "cudagraph skip": (
        {
            "code": "CG311",
            "kind": "cudagraph_skip",
            "evidence": ["torch says: skipping cudagraphs due to mutated inputs"],
        },
        {"reason": "skipping cudagraphs due to mutated inputs"},
    ),
}


def older(**values: Any) -> Run:
    """A run as it was saved before findings had symptoms and pages."""
    plain = run_of(finding("GB104", "graph_break")).to_json()
    del plain["findings"][0]["symptom"], plain["findings"][0]["page"]
    plain["findings"][0].update(values)
    return Run.from_json(plain)


@pytest.mark.parametrize("name", OLDER)
def test_an_older_run_says_in_its_texts_what_to_expect(name: str) -> None:
    texts, expected = OLDER[name]
    signature = choose_failure(older(**texts))
    assert signature.expected | expected == signature.expected


def test_an_older_break_has_torch_s_page_as_evidence() -> None:
    [finding] = older(**OLDER["break"][0]).findings
    assert finding.page == "https://meta-pytorch.github.io/gb0170.html"


def test_an_older_finding_whose_texts_tell_nothing_is_refused() -> None:
    for code, kind in (("GB104", "graph_break"), ("RC210", "recompile")):
        with pytest.raises(UserError, match="run check again"):
            choose_failure(older(code=code, kind=kind))


def test_damaged_texts_of_an_older_run_are_no_error() -> None:
    for line in ("relative error inf, x", "relative error 1.2.3, x", "", ": "):
        for kind in ("numerics", "recompile", "compile_error", "cudagraph_skip"):
            assert older(code="NM401", kind=kind, evidence=[line]).findings
