"""Runs `torchproof` as a user does: in a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def all_of(commands: Mapping[str, Sequence[str]], cwd: Path) -> dict[str, Done]:
    """The answer to each command; two run at a time."""
    with ThreadPoolExecutor(2) as pool:
        begun = {
            name: pool.submit(torchproof, *arguments, cwd=cwd)
            for name, arguments in commands.items()
        }
        return {name: future.result() for name, future in begun.items()}
