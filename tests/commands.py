"""Runs `torchproof`, Python and git as a user does: in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Done = subprocess.CompletedProcess[str]
PROGRAM = (sys.executable, "-m", "torchproof")
WHO = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=0")


def torchproof(
    *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None
) -> Done:
    return run([*PROGRAM, *arguments], cwd, variables)


def python(
    source: str, *, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> Done:
    return run([sys.executable, "-c", source], cwd, variables)


def on_ranks(
    *words: str | Path,
    ranks: int = 2,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Done:
    """A program of Python, or `-m` and a module, under torch's launcher."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    command = [sys.executable, *launch, str(ranks), *words]
    return run(command, cwd, {"OMP_NUM_THREADS": "1", **(variables or {})})


def git(folder: Path, *words: str) -> str:
    """What git prints; fails if git does."""
    done = run(["git", *WHO, *words], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> Done:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
