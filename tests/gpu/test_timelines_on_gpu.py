"""`--trace` on CUDA: recordings of CUDA graphs, and kernels on the clock of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import torchproof
from test_timelines import assert_valid, of

pytestmark = pytest.mark.gpu

SCRIPT = """
import torch

@torch.compile(mode="reduce-overhead", dynamic=False)
def step(x):
    return (x @ x).relu() + 1

for size in (64, 64, 64, 64, 96, 96, 96):
    step(torch.ones(size, size, device="cuda"))
torch.cuda.synchronize()
"""
MODEL = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    return model, [(torch.ones(4, 64, device="cuda"),)]
"""


def traced(folder: Path, *arguments: str) -> dict[str, Any]:
    done = torchproof(*arguments, "--trace", "trace.json", "-q", cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    assert_valid(document)
    return document


def test_recordings_lie_within_the_calls_that_make_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    document = traced(tmp_path, "check", "train.py", "--effort", "quick")
    recordings = of(document, "cudagraph")
    assert recordings
    calls = of(document, "call")
    assert len(calls) == 7
    within = {
        call["name"]
        for each in recordings
        for call in calls
        if call["ts"] <= each["ts"] <= call["ts"] + call["dur"]
    }
    assert {"call 2", "call 6"} <= within  # the first call of a size warms up
    assert "call 4" not in within and "call 7" not in within  # replays
    # Processes of Inductor's pool run the Triton compiler.
    assert "waiting for kernels" in {each["name"] for each in of(document, "phase")}


def test_kernels_run_while_the_profiled_calls_do(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    document = traced(
        tmp_path,
        *("bench", "model.py:make", "--effort", "quick", "--profile"),
        *("--strategies", "eager,full"),
    )
    kernels = of(document, "kernel")
    assert kernels
    commands = of(document, "command")
    for kernel in kernels:
        assert any(
            each["pid"] == kernel["pid"]
            and each["ts"] <= kernel["ts"] <= each["ts"] + each["dur"]
            for each in commands
        ), kernel
