"""How candidates run: what they see, how they end, and what is left of them."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from oracle_runs import RunOracle, candidate_of
from waiting import wait_for_ends

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


def test_a_run_sees_torch_alone(run_oracle: RunOracle) -> None:
    """Neither torchproof, nor this folder, nor who runs it."""
    seen = run_oracle(
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


def test_a_run_without_a_verdict_is_broken(run_oracle: RunOracle) -> None:
    raised = run_oracle("breaks", EXPECTED, "raise ValueError('early')")
    assert raised.verdict == "broken"
    assert "ValueError: early" in raised.text
    left = run_oracle("breaks", EXPECTED, "import os; os._exit(1)")
    assert left.verdict == "broken"
    killed = run_oracle("breaks", EXPECTED, "import os; os.kill(os.getpid(), 9)")
    assert "signal 9" in killed.text
    assert run_oracle("breaks", EXPECTED, "def make(: pass").verdict == "broken"


def test_names_of_program_and_oracle_do_not_clash(
    run_oracle: RunOracle,
) -> None:
    assert run_oracle("breaks", EXPECTED, PRINTS).is_same


def test_runs_get_only_variables_that_configure_torch() -> None:
    environment = {
        "PATH": "/bin",
        "TORCH_COMPILE_DEBUG": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCHPROOF_PARENT": "1",
        "TORCH_TRACE": "/tmp/x",
        "HF_TOKEN": "secret",
        "USER": "ada",
        "TORCHINDUCTOR_CACHE_DIR": "/home/ada/cache",
    }
    kept = run_variables(environment)
    assert sorted(kept) == ["CUDA_VISIBLE_DEVICES", "PATH", "TORCH_COMPILE_DEBUG"]


SLEEPS = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("pids", os.getpid(), other.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_late_run_is_killed_with_all_its_processes(run_oracle: RunOracle) -> None:
    quick = run_oracle("breaks", EXPECTED, SLEEPS, limit_s=3.0)
    with ReproRunner(BREAK, Settings(limit_s=3.0)) as runner:
        clean = runner.run_isolated(runner.text(candidate_of(SLEEPS)))
        folder = Path(runner._scratch.name)
    for outcome in (quick, clean):
        assert outcome.verdict == "timeout", outcome
        wait_for_ends(map(int, outcome.output.split("pids ")[1].split()[:2]), 5.0)
    assert not folder.exists()


@pytest.mark.slow
def test_killed_fork_server_is_replaced() -> None:
    with ReproRunner(BREAK, Settings(limit_s=60.0)) as runner:
        assert runner.run_forked(candidate_of(PRINTS)).is_same
        assert runner._fork_server is not None
        os.kill(runner._fork_server._child.pid, signal.SIGKILL)
        runner._fork_server._child.wait()
        assert runner.run_forked(candidate_of(PRINTS)).is_same


@pytest.mark.slow
def test_forked_and_isolated_runs_agree(runner: ReproRunner) -> None:
    draft = replace(candidate_of(PRINTS), files={"inputs.pt": b"1"})
    runner.signature, runner.settings = BREAK, Settings(limit_s=100.0)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(runner.run_forked, [draft] * 4))
    assert [outcome.verdict for outcome in outcomes] == ["same"] * 4
    clean = runner.run_isolated(runner.text(draft), draft.files)
    assert clean.is_same, clean.output
    assert clean.text == outcomes[0].text
    fine = replace(draft, source=draft.source.replace('print("hi")', "pass"))
    assert runner.run_isolated(runner.text(fine)).verdict == "none"
    assert '"""a print splits the graph\n\ntorch 2.x\n' in runner.text(draft)
