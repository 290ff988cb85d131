"""Processes of one number lie alike in memory, others elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchproof.process import aslr

ROOT = Path(__file__).resolve().parent.parent
# Where a library of the process begins: the first mapping of libc.
WHERE = """
import sys
lines = open("/proc/self/maps").read().splitlines()
print(next(line.split("-")[0] for line in lines if "libc" in line), *sys.argv[1:])
"""


@pytest.mark.skipif(not aslr.is_possible(), reason="the system forbids it")
def test_a_number_is_a_layout(tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text(WHERE)
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])

    def place(number: int) -> str:
        command = f"torchproof.process.aslr {number} where --flag"
        return subprocess.check_output(
            [sys.executable, "-m", *command.split(), "a b"],
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )

    one = place(1)
    assert one.endswith(" --flag a b\n")
    assert place(1) == one
    assert len({one, place(2), place(3)}) == 3


def test_asking_leaves_the_layout_of_this_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [8]

    def personality(persona: int) -> int:
        before = now[0]
        now[0] = before if persona == aslr._ASK else persona
        return before

    monkeypatch.setattr(aslr, "_personality", personality)
    aslr.is_possible()
    assert now == [8]


def test_where_it_is_forbidden_the_module_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(aslr, "_personality", lambda persona: -1)
    monkeypatch.setattr(os, "execv", lambda path, command: started.append(command))
    assert not aslr.is_possible()
    aslr.main(["1", "where", "x"])
    assert started == [[sys.executable, "-P", "-m", "where", "x"]]
