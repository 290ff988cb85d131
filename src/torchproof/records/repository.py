"""The commit of the repository that a file belongs to, as git tells it."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import TypedDict

_LIMIT_S = 5.0


class Commit(TypedDict):
    commit: str | None
    dirty: bool | None


@functools.lru_cache(maxsize=8)
def repository_of(file: Path | None) -> Commit:
    """`commit` and `dirty`; both None without a repository, a commit or git.

    Dirty means that the commit does not describe the code: a tracked file is changed,
    or the file itself is not tracked.
    """
    commit = _git(file, "rev-parse", "HEAD") if file else None
    if file is None or not commit:
        return {"commit": None, "dirty": None}
    changed = _git(file, "status", "--porcelain", "--untracked-files=no")
    is_tracked = _git(file, "ls-files", "--error-unmatch", file.name) is not None
    dirty = None if changed is None else bool(changed) or not is_tracked
    return {"commit": commit, "dirty": dirty}


def _git(file: Path, *arguments: str) -> str | None:
    """The output of a command; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=file.resolve().parent,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
