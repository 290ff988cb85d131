"""The fuzzer of file formats: what it sees, and a short run of it.

`make prove` runs a longer part of `python -m benchmarks.fuzz_files`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import fuzz_engine  # noqa: E402
from benchmarks.fuzz_engine import Case, Job, Limits, Wrong, judge  # noqa: E402
from benchmarks.fuzz_formats import PICKLE  # noqa: E402
from benchmarks.fuzz_mutations import (  # noqa: E402
    HOSTILE,
    OUTSIDE,
    changed,
    json_file,
    spoilt,
    written,
)

QUICK = Limits(cpu_s=0.2, seconds=2.5, memory=64 << 20, file=1 << 20)


def test_mutations_are_of_every_kind_and_come_again() -> None:
    document = {"a": [1, 2.0, "x"], "b": {"c": None}}
    made = [changed(document, random.Random(n)) for n in range(300)]
    assert made == [changed(document, random.Random(n)) for n in range(300)]
    assert len({written(each) for each in made}) > 200
    assert document == {"a": [1, 2.0, "x"], "b": {"c": None}}
    texts = [written(each) for each in HOSTILE]
    assert any("NaN" in text for text in texts) and max(map(len, texts)) > 100_000
    assert len({spoilt(b"0123456789", random.Random(n)) for n in range(50)}) > 30
    sound = written(document).encode()
    assert all(json_file(document, random.Random(n)) != sound for n in range(300))


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


# -- what a reader must not do ---------------------------------------------------------


def _swallowed_write(case: Case) -> None:
    with contextlib.suppress(BaseException):
        os.mkdir("../beside")


def _loop(case: Case) -> None:
    while True:
        pass


NATIVE = ctypes.CDLL(None)  # no audit event tells of its calls
EVALUATED = "__import__('os').mkdir('EXECUTED')"
FAULTS: dict[str, tuple[Callable[[Case], object], str]] = {
    "write": (lambda _: Path(f"{OUTSIDE}.py").touch(), "outside of its folder"),
    "native write": (
        lambda _: NATIVE.mkdir(b"../beside", 0o700),
        "changed around/cases/beside",
    ),
    "swallowed": (_swallowed_write, "outside of its folder"),
    "start": (lambda _: subprocess.run(["true"], check=True), "subprocess.Popen"),
    "unpickle": (lambda _: pickle.loads(PICKLE), "unpickles"),
    "import": (
        lambda case: sys.path.insert(0, str(case.folder)) or __import__("evil"),
        "runs the code of",
    ),
    "evaluate": (lambda _: eval(EVALUATED), "the data was run as code"),
    "read": (lambda _: Path(f"{OUTSIDE}.json").read_bytes(), "reads"),
    "memory": (lambda _: bytes(500 << 20), "MemoryError"),
    "disk": (lambda _: Path("large").write_bytes(bytes(2 << 20)), "too large a file"),
    "loop": (_loop, "too much CPU time, at"),
    "hang in C": (lambda _: NATIVE.pause(), "no end in time"),
    "crash": (lambda _: ctypes.string_at(0), "SIGSEGV"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    fault, words = FAULTS[name]

    def body(case: Case) -> None:
        case.damaged("file.txt", b"x")
        case.function("reading", (case.folder / "file.txt").read_bytes, ())
        if case.tally.cases == 1:
            fault(case)

    [finding] = fuzz_engine.run(Job(body, 3, limits=QUICK))["findings"]
    assert finding.startswith("case 1: ") and words in finding


def test_a_case_that_does_nothing_wrong_has_no_finding() -> None:
    def body(case: Case) -> None:
        path = case.damaged("folder/file.txt", b"x" * 1000)
        assert case.function("reading", path.read_bytes, ()) == b"x" * 1000
        Path("new.txt").write_text(os.path.abspath("new.txt"))
        bytes(1 << 20)

    found = fuzz_engine.run(Job(body, 30, limits=QUICK))
    counts = dict.fromkeys(("cases", "files", "calls", "accepted"), 30)
    assert found == counts | {"refused": 0, "findings": []}
