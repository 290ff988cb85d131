"""Whole programs that keep nothing past its memory are left alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from programs import describe, findings_of, watched

PROGRAM = Path(__file__).resolve().parent.parent / "models" / "lifetimes.py"
CLEAN = [
    node.name
    for node in ast.parse(PROGRAM.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("clean_")
]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("factory", CLEAN)
def test_silence(factory: str) -> None:
    entries = watched(f"{PROGRAM}:{factory}", as_written=True)
    kinds = {entry["kind"] for entry in entries}
    assert "graph_asked" in kinds and "call_failed" not in kinds, entries
    findings = findings_of(entries)
    assert not findings, describe(findings)


def test_a_cache_that_grows_is_fed_back() -> None:
    [found] = findings_of(watched(f"{PROGRAM}:growing_cache", as_written=True))
    assert (found.code, found.severity) == ("CG301", "high")
    assert "`past.layers[0].keys`" in found.message and "clone" in found.fix
