"""Tensors that outlive their memory are found at their line; clean twins are not.

Without a GPU: the programs run as captured, with the lifetimes that graph trees would
give their outputs. `tests/gpu` runs the same programs against the real trees.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from programs import PROGRAMS, assert_expected, audited, describe, findings_of, watched
from rule_programs import Program

WHOLE = Path(__file__).resolve().parent.parent / "models" / "lifetimes.py"
CLEAN = [
    node.name
    for node in ast.parse(WHOLE.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("clean_")
]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            each,
            id=each.name,
            marks=() if each.factory in ("bad", "good") else pytest.mark.slow,
        )
        for each in PROGRAMS
    ],
)
def test_program_gets_its_diagnosis(program: Program) -> None:
    assert_expected(program, audited(program))


def test_finding_names_what_holds_the_tensor() -> None:
    [program] = [each for each in PROGRAMS if each.name == "CG301-bad"]
    [found] = audited(program)
    assert found.severity == "high" and "`outs[0]`" in found.message


@pytest.mark.slow
@pytest.mark.parametrize("factory", CLEAN)
def test_whole_clean_programs_give_no_findings(factory: str) -> None:
    entries = watched(f"{WHOLE}:{factory}", as_written=True)
    kinds = {entry["kind"] for entry in entries}
    assert "graph_asked" in kinds and "call_failed" not in kinds, entries
    findings = findings_of(entries)
    assert not findings, describe(findings)


@pytest.mark.slow
def test_a_cache_that_grows_is_found() -> None:
    [found] = findings_of(watched(f"{WHOLE}:growing_cache", as_written=True))
    assert (found.code, found.severity) == ("CG301", "high")
    assert "`past.layers[0].keys`" in found.message
