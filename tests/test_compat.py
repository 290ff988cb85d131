"""`make compat`: what it reads from the results of a test run."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compat  # noqa: E402


def test_outcomes_are_counted_and_failures_named() -> None:
    outcomes = {"a.py::b[1]": "passed", "a.py::c": "failed", "a.py::d": "skipped"}
    rows = [{"test": name, "outcome": each} for name, each in outcomes.items()]
    assert compat.outcomes(rows) == {
        "counts": {"passed": 1, "failed": 1, "skipped": 1},
        "failed": ["a.py::c"],
    }


def test_the_tests_it_runs_exist() -> None:
    assert compat.TESTS and all((ROOT / each).exists() for each in compat.TESTS)
