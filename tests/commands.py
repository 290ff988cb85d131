"""Runs `torchproof` and Python as a user does: in processes of their own."""

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
    return _run([*PROGRAM, *arguments], cwd, variables)


def python(
    source: str, *, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> Done:
    return _run([sys.executable, "-c", source], cwd, variables)


def _run(
    command: list[str], cwd: Path | None, variables: Mapping[str, str] | None
) -> Done:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
