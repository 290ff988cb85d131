"""Runs `torchproof` as a user does: in a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

Done = subprocess.CompletedProcess[str]
PROGRAM = (sys.executable, "-m", "torchproof")


def torchproof(
    *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None
) -> Done:
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
