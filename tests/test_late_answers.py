"""Answers are compared again after the timing: what is timed must be right as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_workers import backends, by_backend, measured

LATE = Path(__file__).parent / "models" / "late.py"


def test_an_arm_that_turns_wrong_while_timed_is_wrong() -> None:
    specs = backends("stays_right", "turns_wrong")
    rows = by_backend(measured(f"{LATE}:adding", specs))
    assert rows["turns_wrong"].verdict == "wrong"
    why = (rows["turns_wrong"].numerics or {})["why"]
    assert "first pass" in why
    assert rows["stays_right"].verdict != "wrong"
    assert not any("second pass" in note for note in rows["stays_right"].notes)


@pytest.mark.slow
def test_a_target_that_does_not_repeat_itself_is_not_held_to_its_first_pass() -> None:
    eager, row = measured(f"{LATE}:counting", backends("eager")).rows
    assert eager.verdict == "reference" and row.verdict != "wrong"
    assert any("second pass" in note for note in row.notes)
