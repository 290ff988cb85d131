"""The sample of what reading finds in transformers: judged, right, and still found."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from torchproof.checking import suspicions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import precision  # noqa: E402

ROWS = json.loads((ROOT / "benchmarks/results/precision.json").read_text())["rows"]
JUDGED = ROWS["transformers"]


def test_every_finding_of_the_samples_is_judged_and_nine_in_ten_are_right() -> None:
    assert not [*precision.failures(ROWS)]
    assert all(row["why"] for row in JUDGED["sample"])


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
    assert {(row["code"], row["line"]) for row in right} <= places
