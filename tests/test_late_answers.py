"""Answers are compared again after the timing: what is timed must be right as well."""

from __future__ import annotations

from pathlib import Path

from forked_workers import backends, by_backend, measured

LATE = Path(__file__).parent / "models" / "late.py"


def test_a_strategy_that_turns_wrong_while_timed_is_wrong() -> None:
    specs = backends("stays_right", "turns_wrong")
    rows = by_backend(measured(f"{LATE}:adding", specs))
    assert rows["turns_wrong"].verdict == "wrong"
    assert rows["stays_right"].verdict != "wrong"
    assert not any("second pass" in note for note in rows["stays_right"].notes)
