"""A short soak: see benchmarks/soak.py, whose whole is part of `make prove`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


def test_calls_with_faults_at_random(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "--calls", "400", "--inductor-calls", "0"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 calls" in done.stdout and "'raises'" in done.stdout, done.stdout
