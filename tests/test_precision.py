"""The sample of what reading finds in transformers: judged, right, and still found."""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import suspicions

ROOT = Path(__file__).resolve().parent.parent
ROWS = json.loads((ROOT / "benchmarks/results/precision.json").read_text())["rows"]
JUDGED = ROWS["transformers"]


def test_at_least_nine_in_ten_of_the_sample_are_right() -> None:
    verdicts = Counter(row["verdict"] for row in JUDGED["sample"])
    assert set(verdicts) <= {"right", "wrong"}, "a finding was not judged"
    assert verdicts["right"] >= 0.9 * verdicts.total() and verdicts.total() >= 50
    assert all(row["why"] for row in JUDGED["sample"])


def test_the_sample_is_of_many_rules_and_files() -> None:
    codes = Counter(row["code"] for row in JUDGED["sample"])
    assert set(codes) <= set(JUDGED["codes"]) and len(codes) >= 5
    assert sum(JUDGED["codes"].values()) == JUDGED["found"]


@pytest.mark.slow
def test_what_was_judged_right_is_still_found() -> None:
    version = importlib.metadata.version("transformers")
    if version != JUDGED["transformers"]:
        pytest.skip(f"judged on transformers {JUDGED['transformers']}, not {version}")
    import transformers

    packages = Path(transformers.__file__).parent.parent
    right = [row for row in JUDGED["sample"] if row["verdict"] == "right"][::8]
    found = suspicions.read([packages / row["file"] for row in right])
    places = {(s.finding.code, s.finding.line) for s in found.suspicions}
    missing = [row for row in right if key(row) not in places]
    assert not missing


def key(row: dict[str, Any]) -> tuple[str, int]:
    return row["code"], row["line"]
