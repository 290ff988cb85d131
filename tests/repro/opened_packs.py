"""What is in a pack, and its repro run where nothing but torch is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# What is installed here besides torch and what it requires is not found.
ALONE = """
import runpy, sys
from importlib.machinery import PathFinder

HIDDEN = ("torchproof", "libcst", "numpy", "psutil", "rich", "transformers")

class TorchAlone(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in HIDDEN:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = TorchAlone
runpy.run_path("repro.py", run_name="__main__")
"""


def run_alone(archive: Path, folder: Path) -> tuple[int, str]:
    """Unpacks into an empty folder, runs the repro with torch alone and empty caches.

    Returns the exit code and the last line.
    """
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (repro,) = folder.rglob("repro.py")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-I", "-c", ALONE],
            cwd=repro.parent,
            env={
                "PATH": os.environ["PATH"],
                "HOME": scratch,
                "TORCHINDUCTOR_CACHE_DIR": scratch,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


def texts(archive: Path) -> dict[str, str]:
    """Every file of a pack, and the archive's entry for it."""
    found = {}
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            found[f"{member.name} itself"] = repr(member.get_info())
            content = opened.extractfile(member)
            if content is not None:
                found[member.name.partition("/")[2]] = content.read().decode(
                    errors="replace"
                )
    return found
