"""A part of the fault matrix on a GPU: what a failed capture leaves, and others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))

import cells

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
GRACE_S = 20.0


@pytest.mark.parametrize(
    ("fault", "situation"),
    [
        ("an operator waits for the device during capture", "reduce-overhead"),
        ("an operator waits for the device during capture", "graph"),
        ("another thread waits for the captured stream", "reduce-overhead, training"),
        ("another thread waits for the captured stream", "graph, training"),
        ("ptxas dies by SIGSEGV", "recompile"),
        ("illegal access in the first run", "inference"),
    ],
)
def test_fault_is_survived(fault: str, situation: str, tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    outcome = cells.run(
        fault, situation, tmp_path / "cell", grace_s=GRACE_S, device="cuda"
    )
    assert outcome.ok, "\n".join(outcome.wrong)
