"""A short soak: see benchmarks/soak.py, whose whole is part of `make prove`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
SHORT = ("--calls", "160", "--checkpoints", "4", "--inductor-calls", "0")


@pytest.mark.slow
def test_calls_with_faults_at_random(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, *SHORT],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "160 calls" in done.stdout and "faults {'" in done.stdout, done.stdout
