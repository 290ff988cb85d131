"""What goes wrong while compiling costs a model its speed, and nothing else.

A part of the matrix that benchmarks/reliability.py runs whole: each way to fail once.
"""

from __future__ import annotations

from pathlib import Path

import cells
import pytest
from faults import FAULTS, SITUATIONS

# How late an answer may be on a machine that is busy with other things as well.
GRACE_S = 20.0

CHOSEN = (
    ("tracing sleeps in C", "other thread"),
    ("child killed by SIGKILL", "training"),
    ("AOTAutograd raises", "recompile, training"),
    ("first run fails, inputs overwritten", "training"),
    ("miscompile, verify 3", "recompile"),
)
LONG = CHOSEN[:2]


@pytest.mark.parametrize(
    ("fault", "situation"),
    [
        pytest.param(*cell, marks=[pytest.mark.slow] if cell in LONG else [])
        for cell in CHOSEN
    ],
)
def test_fault_is_survived(fault: str, situation: str, tmp_path: Path) -> None:
    outcome = cells.run(fault, situation, tmp_path, grace_s=GRACE_S)
    assert outcome.ok, "\n".join(outcome.wrong)


def test_every_chosen_cell_is_in_the_matrix() -> None:
    for fault, situation in CHOSEN:
        assert situation in FAULTS[fault].situations and situation in SITUATIONS
