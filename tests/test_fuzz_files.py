"""A short run of the fuzzer of file formats, whose whole is part of `make prove`."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import fuzz_files  # noqa: E402
from benchmarks.fuzz_mutations import HOSTILE, changed, spoilt, written  # noqa: E402
from benchmarks.fuzz_oracle import Wrong, judge  # noqa: E402

CASES = {"run JSON": 8, "deploy packs": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_files.FORMATS)
def test_damaged_files_are_refused_or_read(name: str) -> None:
    tally = fuzz_files.fuzz([name], CASES.get(name, 5), seed=20)[name]
    assert not tally.findings, tally.findings
    assert tally.accepted + tally.refused == tally.calls > 0


def test_mutations_are_of_every_kind_and_come_again() -> None:
    document = {"a": [1, 2.0, "x"], "b": {"c": None}}
    made = [changed(document, random.Random(n)) for n in range(300)]
    assert made == [changed(document, random.Random(n)) for n in range(300)]
    assert len({written(each) for each in made}) > 200
    assert document == {"a": [1, 2.0, "x"], "b": {"c": None}}
    texts = [written(each) for each in HOSTILE]
    assert any("NaN" in text for text in texts) and max(map(len, texts)) > 100_000
    assert len({spoilt(b"0123456789", random.Random(n)) for n in range(50)}) > 30


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (3, "", ""),
        (2, "", ""),
        (2, "", "torchproof: a\ntorchproof: b\n"),
        (0, "a\x1b[31m", ""),
        (0, "", "\u202e"),
        (2, "", "Traceback (most recent call last):\nX: y\n"),
        (0, "{} {}", ""),
        (0, "[NaN]", ""),
    ],
)
def test_what_is_wrong_is_seen(code: int, out: str, err: str) -> None:
    with pytest.raises(Wrong):
        judge("x", ["show", "--format", "json"], code, out=out, err=err)
    judge("x", ["show", "--format", "json"], 0, out=json.dumps({}), err="")
