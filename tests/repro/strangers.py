"""Packs failing programs by the command, and runs the packs where torch alone is.

The author of the programs has a name, a home and a secret, which no pack may contain.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from commands import PROGRAM, Done, run
from packaging.requirements import Requirement

FAILURES = Path(__file__).resolve().parent / "failures"
USER = "wilhelmina"
HOME = f"/home/{USER}"
SECRET = "7f3q-Lmx2-09vT-kkUz"
LIMIT_S = 900.0


@dataclass(frozen=True)
class Case:
    """A failing program of `failures`, the flags to pack it, and the pack's form."""

    name: str
    kind: str  # of the failure
    form: str
    flags: tuple[str, ...] = ("--effort", "quick")
    script: bool = False

    @property
    def target(self) -> str:
        return f"{self.name}.py" if self.script else f"{self.name}.py:make"

    def source(self) -> str:
        """The program with private values in it."""
        head, rest = (FAILURES / f"{self.name}.py").read_text().split("\n\n\n", 1)
        notes = f'NOTES = "{HOME}/notes.txt"  # ask {USER}, or use {SECRET}'
        return f"{head}\n\n{notes}\n\n\n{rest}"


def torchproof(home: Path, *arguments: str) -> Done:
    """The command in the author's project."""
    variables = {"USER": USER, "LOGNAME": USER, "HOME": str(home)}
    variables |= {"REGISTRY_TOKEN": SECRET, "TORCHPROOF_HOME": str(home)}
    return run([*PROGRAM, *arguments], home / "project", variables, LIMIT_S)


def run_alone(
    archive: Path, folder: Path, python: str = sys.executable
) -> tuple[int, str]:
    """Unpacks into an empty folder, runs the repro with empty caches.

    Returns the exit code and the last line.
    """
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (repro,) = folder.rglob("repro.py")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [python, "-I", "repro.py"],
            cwd=repro.parent,
            env={
                "PATH": os.environ["PATH"],
                "HOME": scratch,
                "TORCHINDUCTOR_CACHE_DIR": scratch,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
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


# -- an interpreter with torch alone ---------------------------------------------------


def bare_python(folder: Path) -> str:
    """An interpreter that finds torch and what torch requires, and nothing else."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in _required("torch"):
        for part in _parts_of(name):
            if not (packages / part.name).exists():
                (packages / part.name).symlink_to(part)
    return str(folder / "bin" / "python")


def _required(name: str) -> list[str]:
    """A distribution with all that it requires on this machine."""
    found: list[str] = []
    waiting = [name]
    while waiting:
        one = waiting.pop()
        try:
            requirements = metadata.requires(one) or ()
        except metadata.PackageNotFoundError:
            continue
        if one not in found:
            found.append(one)
            parsed = map(Requirement, requirements)
            waiting += [
                each.name
                for each in parsed
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]
    return found


def _parts_of(name: str) -> set[Path]:
    """What a distribution has put directly into the folder of packages."""
    distribution = metadata.distribution(name)
    tops = {each.parts[0] for each in distribution.files or ()} - {"..", "__pycache__"}
    found = {Path(str(distribution.locate_file(top))) for top in tops}
    return {path for path in found if path.exists()}
