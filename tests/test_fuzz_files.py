"""The fuzzer of file formats: what it sees, and a short run of it.

Its whole is `python -m benchmarks.fuzz_files`, of which `make prove` runs a part.
"""

from __future__ import annotations

import ctypes
import dataclasses
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

from benchmarks import fuzz_files, fuzz_worker, result_files  # noqa: E402
from benchmarks.fuzz_formats import PICKLE  # noqa: E402
from benchmarks.fuzz_mutations import (  # noqa: E402
    HOSTILE,
    OUTSIDE,
    changed,
    json_file,
    spoilt,
    written,
)
from benchmarks.fuzz_oracle import Case, Tally, Wrong, judge  # noqa: E402

QUICK = fuzz_worker.Limits(cpu_s=0.5, blocked_s=2.0, memory=64 << 20, file=1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_files.FORMATS)
def test_damaged_files_are_refused_or_read(name: str) -> None:
    tally = fuzz_files.fuzz([name], 20, seed=20)[name]
    assert not tally.findings, tally.examples
    assert tally.accepted + tally.refused == tally.calls > 0
    assert tally.files >= tally.cases == 20


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


def _hidden_write(case: Case) -> None:
    with open(f"{OUTSIDE}.py", "w"):
        pass


def _native_write(case: Case) -> None:
    ctypes.CDLL(None).mkdir(b"../beside", 0o700)  # no audit event tells of it


def _swallowed_write(case: Case) -> None:
    try:
        os.mkdir("../beside")
    except BaseException:
        return


def _start(case: Case) -> None:
    subprocess.run(["true"], check=True)


def _unpickle(case: Case) -> None:
    pickle.loads(PICKLE)


def _import(case: Case) -> None:
    sys.path.insert(0, str(case.folder))
    __import__("evil")


def _evaluate(case: Case) -> None:
    eval("__import__('os').mkdir('EXECUTED')")


def _read_secret(case: Case) -> None:
    Path(f"{OUTSIDE}.json").read_bytes()


def _allocate(case: Case) -> None:
    bytes(500 << 20)


def _fill_disk(case: Case) -> None:
    Path("large").write_bytes(bytes(2 << 20))


def _loop(case: Case) -> None:
    while True:
        pass


def _hang_in_c(case: Case) -> None:
    ctypes.CDLL(None).pause()


def _crash(case: Case) -> None:
    ctypes.string_at(0)


def _leave_open(case: Case) -> None:
    case.kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]  # type: ignore


FAULTS: dict[str, tuple[Callable[[Case], None], str]] = {
    "write": (_hidden_write, "outside of its folder"),
    "native write": (_native_write, "changed around/cases/beside"),
    "swallowed": (_swallowed_write, "outside of its folder"),
    "start": (_start, "subprocess.Popen"),
    "unpickle": (_unpickle, "unpickles"),
    "import": (_import, "runs the code of"),
    "evaluate": (_evaluate, "the data was run as code"),
    "read": (_read_secret, "reads"),
    "memory": (_allocate, "MemoryError"),
    "disk": (_fill_disk, "SIGXFSZ"),
    "loop": (_loop, "more than 0.5 s of CPU time"),
    "hang in C": (_hang_in_c, "blocked for more than 2 s"),
    "crash": (_crash, "SIGSEGV"),
    "descriptors": (_leave_open, "file descriptors"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_the_other_cases_go_on(name: str) -> None:
    fault, words = FAULTS[name]

    def body(case: Case) -> None:
        case.damaged("file.txt", b"x")
        case.function("reading", (case.folder / "file.txt").read_bytes, ())
        if case.tally.cases == 1:
            fault(case)

    tally = fuzz_worker.run(fuzz_worker.Job("x", body, limits=QUICK), range(3))
    assert tally.findings == 1 and words in tally.examples[0].what, tally.examples
    assert tally.cases == 3 and tally.examples[0].case in (1, 2)


def test_a_case_that_does_nothing_wrong_has_no_finding() -> None:
    def body(case: Case) -> None:
        path = case.damaged("folder/file.txt", b"x" * 1000)
        assert case.function("reading", path.read_bytes, ()) == b"x" * 1000
        Path("new.txt").write_text(os.path.abspath("new.txt"))
        bytes(1 << 20)

    tally = fuzz_worker.run(fuzz_worker.Job("x", body, limits=QUICK), range(30))
    assert tally.findings == 0, tally.examples
    assert (tally.cases, tally.files, tally.calls, tally.accepted) == (30, 30, 30, 30)


# -- counts that are kept --------------------------------------------------------------


def test_counts_go_on_and_commits_are_not_mixed(tmp_path: Path) -> None:
    path, name = tmp_path / "kept.json", "run JSON"
    one = fuzz_files.Results(path, "one", 0)
    one.keep(name, Tally(cases=7, files=9))
    assert fuzz_files.Results(path, "one", 0).tally(name).files == 9
    assert fuzz_files.Results(path, "one", 0).tally("trace folders").cases == 0
    with pytest.raises(result_files.OtherCommit, match=r"one.*--restart"):
        fuzz_files.Results(path, "two", 0).tally(name)
    with pytest.raises(result_files.OtherCommit, match="seed"):
        fuzz_files.Results(path, "one", 1).tally(name)
    two = fuzz_files.Results(path, "two", 0)
    two.forget([name])
    assert dataclasses.asdict(two.tally(name)) == dataclasses.asdict(Tally())
