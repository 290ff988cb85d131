"""Sweeps of targets with state on CUDA: every size is compared, graphs included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import torchproof

pytestmark = pytest.mark.gpu

STATEFUL = Path(__file__).parents[1] / "models" / "stateful.py"


def rows(factory: str, folder: Path, *flags: str) -> list[dict[str, Any]]:
    strategies = "full,full:reduce-overhead,full+graph"
    done = torchproof(
        *("bench", f"{STATEFUL}:{factory}", "--device", "cuda", "--format", "json"),
        *("--strategies", strategies, *flags),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["measurements"]
    return [row for row in found if row["verdict"] not in ("skipped", "fell back")]


@pytest.mark.parametrize(
    ("factory", "at_16"), [("right", "verified"), ("wrong_at_16", "wrong")]
)
def test_every_size_is_compared(factory: str, at_16: str, tmp_path: Path) -> None:
    found = rows(factory, tmp_path, "--batch", "8,16", "--effort", "quick")
    compiled = [row for row in found if row["strategy"] != "eager"]
    states = {(row["variant"]["batch"], row["verification"]) for row in compiled}
    assert states == {(8, "verified"), (16, at_16)}


def test_five_processes_need_no_constant(tmp_path: Path) -> None:
    for row in rows("right", tmp_path, "--repeats", "5"):
        assert (row["processes"], row["interval_over"]) == (5, "processes")
        assert row["luck"] == 0.0


def test_few_processes_take_the_variation_from_the_run(tmp_path: Path) -> None:
    two = rows("right", tmp_path, "--repeats", "2")
    assert {row["interval_over"] for row in two} == {"rounds"}
    assert len({row["luck"] for row in two}) == 1 and two[0]["luck"] > 0
    one = rows("right", tmp_path, "--repeats", "1")
    assert {(row["processes"], row["luck"]) for row in one} == {(1, 0.0)}
