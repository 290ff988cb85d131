"""`make compat`: what it reads from the results of a test run."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compat  # noqa: E402

REPORT = """
<testsuites><testsuite>
<testcase classname="tests.test_rules"
  name="test_program_gets_its_diagnosis[GB101-item]"/>
<testcase classname="tests.test_rules"
  name="test_program_gets_its_diagnosis[GB101-clean]"><failure/></testcase>
<testcase classname="tests.runtime.test_compile" name="test_outputs"><error/></testcase>
<testcase classname="tests.test_trace" name="test_new"><skipped
  message="needs torch 2.15"/></testcase>
</testsuite></testsuites>
"""


def test_outcomes_are_counted_and_failures_named(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(REPORT)
    read = compat.outcomes(tmp_path / "junit.xml")
    assert read["counts"] == {"passed": 1, "failed": 2, "skipped": 1}
    assert read["skipped"] == {"tests.test_trace::test_new": "needs torch 2.15"}
    assert read["failed"] == [
        "tests.runtime.test_compile::test_outputs",
        "tests.test_rules::test_program_gets_its_diagnosis[GB101-clean]",
    ]


def test_the_tests_it_runs_exist() -> None:
    assert compat.TESTS and all((ROOT / each).exists() for each in compat.TESTS)
