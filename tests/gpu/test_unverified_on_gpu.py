"""Sweeps of targets with state on CUDA: every size is compared, graphs included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import torchproof

pytestmark = pytest.mark.gpu

STATEFUL = Path(__file__).parents[1] / "models" / "stateful.py"


@pytest.mark.parametrize(
    ("factory", "at_16"), [("right", "verified"), ("wrong_at_16", "wrong")]
)
def test_every_size_is_compared(factory: str, at_16: str, tmp_path: Path) -> None:
    done = torchproof(
        *("bench", f"{STATEFUL}:{factory}", "--device", "cuda", "--format", "json"),
        *("--strategies", "full,full+graph", "--batch", "8,16"),
        *("--effort", "quick", "--repeats", "1"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measurements"]
    compiled = [
        (row["variant"]["batch"], row["verification"])
        for row in rows
        if row["strategy"] != "eager" and row["verdict"] not in ("skipped", "fell back")
    ]
    assert {*compiled} == {(8, "verified"), (16, at_16)}
