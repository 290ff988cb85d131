"""Lies about time that only a GPU can tell: queued work, host copies, warm kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = '''
import os
import torch

BUSY = 20_000_000  # cycles: some 10 ms, whatever the clock


def before_call(fn, index):
    if getattr(fn, "busy_before", False):
        torch.cuda._sleep(BUSY)


class Queued(torch.nn.Module):
    """Only queues its work: on the current stream, on another, or none."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.busy_before = where == "before"
        self.stream = torch.cuda.Stream()
        self.weight = torch.nn.Parameter(torch.ones(8, device="cuda"))

    def forward(self, x):
        if self.where == "here":
            torch.cuda._sleep(BUSY)
        if self.where == "elsewhere":
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(BUSY)
        return x * self.weight


def here(): return Queued("here"), [(torch.ones(8, device="cuda"),)]
def elsewhere(): return Queued("elsewhere"), [(torch.ones(8, device="cuda"),)]
def before(): return Queued("before"), [(torch.ones(8, device="cuda"),)]


class Copying(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.to(self.weight.device))


def copying(): return Copying(8, 8, device="cuda"), [(torch.ones(4, 8),)]
def resident(): return Copying(8, 8, device="cuda"), [(torch.ones(4, 8).cuda(),)]


def cached():
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = os.path.join(os.environ["KERNELS"], name)
    return (lambda x: (x + 1).relu() * 2), [(torch.ones(512, device="cuda"),)]
'''


def rows(folder: Path, factory: str, *flags: str) -> list[dict[str, Any]]:
    (folder / "lying.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torchproof", "bench", f"lying.py:{factory}"]
    done = subprocess.run(
        [*command, "--seconds", "0.5", "--format", "json", *flags],
        cwd=folder,
        env={**os.environ, "KERNELS": str(folder / "kernels")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)["measurements"]
    return found


def only(found: list[dict[str, Any]]) -> dict[str, Any]:
    [row] = found
    return row


EAGER = ("--strategies", "eager", "--repeats", "1")


def test_queued_work_is_timed_until_it_has_ended(tmp_path: Path) -> None:
    assert only(rows(tmp_path, "here", *EAGER))["median_ms"] > 5
    assert only(rows(tmp_path, "elsewhere", *EAGER))["median_ms"] > 5


def test_work_that_was_queued_before_is_not_the_steps(tmp_path: Path) -> None:
    assert only(rows(tmp_path, "before", *EAGER))["median_ms"] < 2


def test_host_copies_are_noted(tmp_path: Path) -> None:
    said = only(rows(tmp_path, "copying", *EAGER))["notes"]
    assert any("1 inputs" in note and "CPU" in note for note in said)
    said = only(rows(tmp_path, "resident", *EAGER))["notes"]
    assert not any("inputs" in note and "CPU" in note for note in said)


def test_kernels_of_an_earlier_run_make_no_cold_start(tmp_path: Path) -> None:
    flags = ("--strategies", "eager,full", "--repeats", "1")
    _, first = rows(tmp_path, "cached", *flags)
    assert first["start"]["refused"] is None and first["first_call_s"] > 0
    _, second = rows(tmp_path, "cached", *flags)
    assert "cold" in second["start"]["refused"]
    assert second["first_call_s"] is None
