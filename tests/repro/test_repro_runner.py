"""How drafts are run: what they see, how they are ended, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import Judged, draft_of

from torchproof.packs.repro.candidate import Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.repro_runner import ReproRunner, run_variables

EXPECTED = {"type": "anything", "id": "GB0059", "names": ["print"], "skips": False}
BREAK = FailureSignature("breaks", "a print splits the graph", "graph_break", EXPECTED)
PRINTS = """
from __future__ import annotations

import torch
from time import time


def recognise(x):
    return x.sin()


def judge(x):
    y = recognise(x)
    print("hi")
    return y.cos()


def make():
    return judge, [(torch.ones(4),)]
"""


def test_a_run_sees_torch_alone(judged: Judged) -> None:
    """Neither torchproof, nor this folder, nor who runs it."""
    seen = judged(
        "breaks",
        EXPECTED,
        """
        import os, sys
        print(sorted(os.environ), os.listdir(), sys.path)
        try:
            import torchproof
        except ImportError:
            print("no torchproof here")
        """,
    )
    assert "no torchproof here" in seen.output
    assert "['output.txt', 'repro.py']" in seen.output
    here = str(Path(__file__).parents[1])
    for word in ("PYTHONPATH", "USER", "PYTEST", here):
        assert word not in seen.output, word


def test_a_run_without_a_verdict_is_broken(judged: Judged) -> None:
    raised = judged("breaks", EXPECTED, "raise ValueError('early')")
    assert raised.verdict == "broken"
    assert "ValueError: early" in raised.text
    left = judged("breaks", EXPECTED, "import os; os._exit(1)")
    assert left.verdict == "broken"
    killed = judged("breaks", EXPECTED, "import os; os.kill(os.getpid(), 9)")
    assert "signal 9" in killed.text
    assert judged("breaks", EXPECTED, "def make(: pass").verdict == "broken"


def test_names_of_the_program_and_of_the_judge_never_meet(judged: Judged) -> None:
    assert judged("breaks", EXPECTED, PRINTS).is_same


def test_the_environment_is_cut_to_what_steers_torch() -> None:
    given = {
        "PATH": "/bin",
        "TORCH_COMPILE_DEBUG": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCHPROOF_PARENT": "1",
        "TORCH_TRACE": "/tmp/x",
        "HF_TOKEN": "secret",
        "USER": "ada",
        "TORCHINDUCTOR_CACHE_DIR": "/home/ada/cache",
    }
    kept = run_variables(given)
    assert sorted(kept) == ["CUDA_VISIBLE_DEVICES", "PATH", "TORCH_COMPILE_DEBUG"]


SLEEPS = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("pids", os.getpid(), other.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_late_run_is_ended_with_all_that_it_started(judged: Judged) -> None:
    quick = judged("breaks", EXPECTED, SLEEPS, limit_s=3.0)
    with ReproRunner(BREAK, Settings(limit_s=3.0)) as court:
        clean = court.run_isolated(court.text(draft_of(SLEEPS)))
        folder = Path(court._scratch.name)
    for outcome in (quick, clean):
        assert outcome.verdict == "timeout", outcome
        pids = [int(word) for word in outcome.output.split("pids ")[1].split()[:2]]
        assert _end(pids) == []
    assert not folder.exists()


def _end(pids: list[int], patience_s: float = 5.0) -> list[int]:
    """Those that still run after a while; what is dead but not buried does not."""
    limit = time.monotonic() + patience_s
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < limit:
        time.sleep(0.05)
    return left


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


PARENT = """
import sys
sys.path.insert(0, {here!r})
from test_repro_runner import *
court = ReproRunner(BREAK, Settings(device="cuda", limit_s=100.0))  # loads torch alone
court.run_forked(draft_of("print('warm')"))
print(court._fork_server._child.pid, flush=True)
court.run_forked(draft_of("import time; time.sleep(600)"))
"""


@pytest.mark.slow
def test_nothing_outlives_a_parent_that_is_killed() -> None:
    here = str(Path(__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(here=here)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    assert parent.stdout is not None
    nursery = int(parent.stdout.readline())
    limit = time.monotonic() + 20
    while not (children := psutil.Process(nursery).children()):
        assert time.monotonic() < limit
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert _end([nursery, *(child.pid for child in children)]) == []


@pytest.mark.slow
def test_a_nursery_that_was_killed_is_replaced() -> None:
    with ReproRunner(BREAK, Settings(limit_s=60.0)) as court:
        assert court.run_forked(draft_of(PRINTS)).is_same
        assert court._fork_server is not None
        os.kill(court._fork_server._child.pid, signal.SIGKILL)
        court._fork_server._child.wait()
        assert court.run_forked(draft_of(PRINTS)).is_same


@pytest.mark.slow
def test_both_ways_and_many_at_once_give_one_verdict() -> None:
    draft = replace(draft_of(PRINTS), files={"inputs.pt": b"1"})
    with ReproRunner(BREAK, Settings(limit_s=100.0), header="torch 2.x") as court:
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(court.run_forked, [draft] * 4))
        assert [outcome.verdict for outcome in outcomes] == ["same"] * 4
        clean = court.run_isolated(court.text(draft), draft.files)
        assert clean.is_same, clean.output
        assert clean.text == court.run_forked(draft).text
        fine = replace(draft, source=draft.source.replace('print("hi")', "pass"))
        assert court.run_isolated(court.text(fine)).verdict == "none"
        assert '"""a print splits the graph\n\ntorch 2.x\n' in court.text(draft)
