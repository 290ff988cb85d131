"""What torchproof starts ends with it, however torchproof ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import PROGRAM, python
from waiting import in_fork, is_running, wait_for, wait_for_ends

from torchproof.process import parent_death

# Sleeps in C code without letting go of the interpreter: no thread of it gets a turn.
HANGS = """
import ctypes, os
open("asleep.part", "w").write(f"{os.getpid()} {'TORCHPROOF_PARENT' in os.environ}")
os.rename("asleep.part", "asleep")
ctypes.PyDLL(None).sleep(99)
"""
# A worker started by a thread that ends, as a search over several devices does.
BEGINS = """
import os, threading, time
from torchproof.measure import worker_process
from torchproof.measure.specs import EAGER, StrategyJob

def begin():
    job = StrategyJob(EAGER)
    workers.append(worker_process.Worker(job, {}, quiet=True, module="hangs"))
    while not os.path.exists("asleep"):
        time.sleep(0.05)

workers = []
thread = threading.Thread(target=begin)
thread.start()
thread.join()
time.sleep(99)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hangs.py").write_text(HANGS)
    return tmp_path


def asleep(folder: Path, parent: subprocess.Popen[bytes]) -> int:
    """The process that hangs, once it does."""
    wait_for(lambda: (folder / "asleep").exists() or parent.poll() is not None)
    number, has_variable = (folder / "asleep").read_text().split()
    assert has_variable == "False", "the program sees what only its start needs"
    return int(number)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*PROGRAM, "check", "hangs.py", "--skip", "static"], id="check"),
        pytest.param([sys.executable, "-c", BEGINS], id="worker"),
    ],
)
def test_hung_child_ends_with_its_killed_parent(
    command: list[str], folder: Path
) -> None:
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(folder)])
    environment = os.environ | {"PYTHONPATH": path}
    parent = subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        child = asleep(folder, parent)
        time.sleep(0.3)
        assert is_running(child), "it ends with the thread that began it"
    finally:
        parent.kill()
        parent.wait()
    wait_for_ends([child], 30)


def held(parent: int) -> int:
    """The exit code of a process that is bound to this parent."""
    line = "from torchproof.process import parent_death; parent_death.hold()"
    return python(line, variables={"TORCHPROOF_PARENT": str(parent)}).returncode


def test_child_starts_only_if_its_parent_is_there() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert held(gone.pid) == 1
    assert held(os.getppid()) == 0  # which began it through another process


def test_error_of_a_start_is_raised_by_the_caller() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        parent_death.begun(lambda: subprocess.Popen(["no-such-program"]))
    assert parent_death.begun(lambda: 3) == 3


def test_forked_process_begins_with_a_thread_of_its_own() -> None:
    parent_death.begun(lambda: None)

    def begin() -> None:
        assert parent_death.begun(lambda: 7) == 7

    assert in_fork(begin, 60) == 0
