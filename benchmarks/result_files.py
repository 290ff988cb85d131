"""Results that are kept as they come, each with the commit that gave it.

`commit_of` names the code of a checkout. Results of two commits never share a count:
`assert_commit` refuses a file that holds those of another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Results and the pages made of them change during a run, and run nothing.
_NO_CODE = (":!benchmarks/results", ":!docs", ":!*.md")


class OtherCommit(Exception):
    """The file holds results that this code did not give."""


def assert_commit(path: Path, kept: Iterable[str], commit: str) -> None:
    """Raises `OtherCommit` if a kept result is of another commit."""
    if others := set(kept) - {commit}:
        raise OtherCommit(
            f"{path} holds results of {', '.join(sorted(others))}, and this is"
            f" {commit}: use --restart, or another file with -o"
        )


def write(path: Path, plain: Any) -> None:
    """Replaces the file at once, so that an interrupt leaves the old or the new one."""
    written = path.with_suffix(".part")
    written.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    written.replace(path)


def without_paths(text: str) -> str:
    """Results do not name the folders of the machine that they come from."""
    return text.replace(f"{ROOT}{os.sep}", "").replace(sys.prefix, ".venv")


def commit_of(root: Path) -> str:
    """The commit of a checkout; changes that are not committed give it another name."""
    name = _git(root, "rev-parse", "--short=12", "HEAD").decode().strip()
    changes = _git(root, "diff", "HEAD", "--binary", "--", ".", *_NO_CODE)
    listed = _git(
        *(root, "ls-files", "-z", "--others", "--exclude-standard", "--", "."),
        *_NO_CODE,
    )
    digest = hashlib.sha256(changes)
    files = [file for file in listed.decode().split("\0") if file]
    for file in files:
        digest.update(file.encode())
        path = root / file
        # Git lists a link to a folder as one file.
        link = path.is_symlink()
        digest.update(os.fsencode(path.readlink()) if link else path.read_bytes())
    is_dirty = bool(changes or files)
    return f"{name}-dirty-{digest.hexdigest()[:8]}" if is_dirty else name


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, check=True
    ).stdout
