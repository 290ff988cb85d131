"""Ctrl-C in a Python program: the run is saved, then KeyboardInterrupt is raised."""

from __future__ import annotations

import json
from pathlib import Path

import commands
import forked_commands
import pytest

from torchproof.records import Run, store

# Sends SIGINT to the program, from the process that the verb started for the target.
TARGET = """\
import os, signal, time
os.kill(int(os.environ["PROGRAM"]), signal.SIGINT)
time.sleep(60)

def make():
    pass
"""
PROGRAM = """\
import json, os, signal
import torchproof
from torchproof import api

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["PROGRAM"] = str(os.getpid())
load = {{"load_options": api.LoadOptions(rate=5.0, requests=5)}}
try:
    {call}
except KeyboardInterrupt as error:
    run = api.interrupted_run(error)
    kind, notes = type(error).__name__, error.__notes__
    print(json.dumps({{"type": kind, "id": run.id, "notes": notes}}))
else:
    print(json.dumps("the program went on"))
"""
CALLS = {
    "check": 'torchproof.check("m.py:make", quiet=True)',
    "bench": 'torchproof.bench("m.py:make", quiet=True)',
    "fix": 'torchproof.fix("m.py:make", quiet=True)',
    "tune": 'torchproof.tune("m.py:make", quiet=True)',
    "loadtest": 'torchproof.loadtest("m.py:make", **load)',
    "pack": 'api.pack("m.py:make", purpose="repro")',
}


def saved(folder: Path, run_id: str) -> Run:
    return store.load(run_id, folder / store.RUNS)


@pytest.mark.parametrize("verb", CALLS)
def test_the_run_is_saved_and_the_program_is_interrupted(
    verb: str, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(TARGET)
    done = forked_commands.python(PROGRAM.format(call=CALLS[verb]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    raised = json.loads(done.stdout)
    assert raised["type"] == "KeyboardInterrupt", raised
    run = saved(tmp_path, raised["id"])
    assert run.ending == "interrupted" and run.target == "m.py:make"
    assert run.verb == {"pack": "check"}.get(verb, verb)
    assert any(run.id in note for note in raised["notes"])


# Its lock cannot be sent to another process, so the check runs it in this one.
HERE = """\
import threading, torch

class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    @torch.compiler.disable
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGINT)
        return x + 1
"""


def test_what_runs_in_the_program_itself_is_saved_as_well(tmp_path: Path) -> None:
    call = "torchproof.check(Step(), [(torch.ones(2),)], quiet=True)"
    program = HERE + PROGRAM.format(call=call)
    done = forked_commands.python(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = saved(tmp_path, json.loads(done.stdout)["id"])
    assert run.ending == "interrupted" and run.parts["breaks"].status == "failed"


# The processes that read files would stay for ever.
READING = """\
import os, signal
from torchproof.checking import suspicions
from torchproof.cli import main
from torchproof.process import Child

def receive(child):
    os.kill(child.pid, signal.SIGSTOP)
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
Child.receive = receive
suspicions._FILES_FOR_ONE_PROCESS = suspicions._FILES_PER_TASK = 1
raise SystemExit(main(["check", ".", "--effort", "static"]))
"""


def test_ctrl_c_ends_the_processes_that_read_a_folder(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import torch\n")
    done = commands.python(READING, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "")
