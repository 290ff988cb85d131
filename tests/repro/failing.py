"""Programs that fail under torch.compile, and someone with torch alone who runs them.

`CASES` names the failures; each is a file under `failures`. What a stranger would use
to find out who packed it (a user name, a home, a secret) is planted all around.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

FAILURES = Path(__file__).resolve().parent / "failures"
USER = "wilhelmina"
HOME = f"/home/{USER}"
SECRET = "7f3q-Lmx2-09vT-kkUz"
MANIFEST = "/manifest.json"
PATIENCE_S = 900.0
_QUICK = ("--effort", "quick")


@dataclass(frozen=True)
class Case:
    """One failing program, and what a pack of it is to say."""

    name: str
    kind: str  # of the symptom
    flags: tuple[str, ...] = _QUICK
    forms: tuple[str, ...] = ("frame", "program")
    script: bool = False  # no factory: it is run as it is written

    @property
    def target(self) -> str:
        return f"{self.name}.py" if self.script else f"{self.name}.py:make"


_NORMAL = ("--effort", "normal")
_BELOW = ("graph", "program")
CASES = (
    Case("item_read", "graph_break"),
    Case("value_branch", "graph_break"),
    Case("printed_progress", "graph_break"),
    Case("checksum_call", "graph_break"),
    Case("library_experts", "graph_break", forms=("frame",)),
    Case("dataclass_schedule", "graph_break"),
    Case("training_script", "graph_break", script=True),
    Case("skipped_loop", "skipped_frame"),
    Case("nothing_compiled", "no_op", (*_QUICK, "--as-written")),
    Case("guarded_reshape", "compile_error"),
    Case("decimal_tariff", "compile_error", (*_QUICK, "--select", "CE799")),
    Case("gradient_penalty", "compile_error", (*_QUICK, "--as-written", "--train")),
    Case("unbacked_batch", "compile_error", _NORMAL, _BELOW),
    Case("tide_operator", "compile_error", forms=("program",)),
    Case("quarry_operator", "compile_error", _NORMAL, ("program",)),
    Case("step_counter", "recompile"),
    Case("shape_storm", "recompile", (*_QUICK, "--compile", "dynamic=False")),
    Case("optional_mask", "recompile"),
    Case("mode_flip", "recompile"),
    Case("fixed_batch", "specialization"),
    Case("frozen_switch", "stale_state", _NORMAL),
    Case("lorentz_distance", "numerics", _NORMAL, _BELOW),
    Case("ledger_operator", "numerics", _NORMAL, ("program",)),
    Case("tiny_controller", "slowdown", _NORMAL, _BELOW),
    Case("unrolled_cell", "compile_time", _NORMAL, _BELOW),
    Case("endless_scan", "hang", (*_NORMAL, "--timeout", "40"), _BELOW),
)


@dataclass(frozen=True)
class Packed:
    """What the command gave, and the pack, if there is one."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    path: Path

    @property
    def manifest(self) -> dict[str, Any]:
        (text,) = (v for k, v in texts(self.path).items() if k.endswith(MANIFEST))
        found: dict[str, Any] = json.loads(text)
        return found


@dataclass(frozen=True)
class Ran:
    """What `python -I repro.py` gave."""

    code: int
    lines: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.lines[-1] if self.lines else ""


def packed(case: Case, folder: Path, *more: str) -> Packed:
    """Packs it by the command, as a user does whose name is not to be told."""
    home = folder / USER
    work = home / "project"
    work.mkdir(parents=True, exist_ok=True)
    source = (FAILURES / f"{case.name}.py").read_text()
    (work / f"{case.name}.py").write_text(with_traces(source))
    path = folder / f"{case.name}.tar.gz"
    command = [sys.executable, "-m", "torchproof", "pack", case.target]
    command += ["--for", "repro", *case.flags, "-o", str(path), *more]
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=work,
        env=surroundings(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    seconds = time.monotonic() - began
    return Packed(done.returncode, done.stdout, done.stderr, seconds, path)


def with_traces(source: str) -> str:
    """The program with what its author left in it."""
    head, rest = source.split("\n\n\n", 1)
    kept = f'NOTES = "{HOME}/notes.txt"  # ask {USER}, or use {SECRET}'
    return f"{head}\n\n{kept}\n\n\n{rest}"


def about(case: Case) -> str:
    """What the program says of itself, in one sentence."""
    text = (FAILURES / f"{case.name}.py").read_text()
    return text.split('"""')[1].strip().splitlines()[0]


def surroundings(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    named = {"USER": USER, "LOGNAME": USER, "HOME": str(home)}
    return {**kept, **named, "REGISTRY_TOKEN": SECRET, "TORCHPROOF_HOME": str(home)}


# -- at the other end ------------------------------------------------------------------


def unpacked(path: Path, folder: Path) -> Path:
    """The files of a pack, in an empty folder."""
    folder.mkdir(parents=True)
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    (repro,) = folder.rglob("repro.py")
    return repro.parent


def ran(folder: Path, python: Path, *, limit_s: float = PATIENCE_S) -> Ran:
    """The repro of an unpacked pack, with empty caches."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [str(python), "-I", "repro.py"],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": scratch,
                "TORCHINDUCTOR_CACHE_DIR": scratch,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    return Ran(done.returncode, [line for line in done.stdout.splitlines() if line])


def bare_python(folder: Path) -> Path:
    """An interpreter that finds torch and what torch requires, and nothing else."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in required("torch"):
        for part in parts_of(name):
            if not (packages / part.name).exists():
                (packages / part.name).symlink_to(part)
    return folder / "bin" / "python"


def required(name: str) -> list[str]:
    """A distribution with all that it requires on this machine."""
    from packaging.requirements import Requirement

    found, waiting = [], [name]
    while waiting:
        one = waiting.pop()
        if one in found or not is_installed(one):
            continue
        found.append(one)
        for line in metadata.requires(one) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return found


def is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def parts_of(name: str) -> set[Path]:
    """What a distribution has put directly into the folder of packages."""
    one = metadata.distribution(name)
    tops = {file.parts[0] for file in one.files or () if file.parts[0] != ".."}
    found = {Path(str(one.locate_file(top))) for top in tops}
    return {path for path in found if path.name != "__pycache__" and path.exists()}


@functools.cache
def texts(path: Path) -> dict[str, str]:
    """Every file of a pack, and what the archive itself says of its members."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            told = f"{member.name} {member.uname} {member.gname} {member.linkname}"
            found[f"{member.name} itself"] = f"{told} {member.pax_headers}"
            content = archive.extractfile(member)
            if content is not None:
                found[member.name] = content.read().decode(errors="replace")
    return found


def program_lines(packed: Packed) -> int:
    """Of what fails in a repro: its header and its judge are no part of it."""
    (text,) = (v for k, v in texts(packed.path).items() if k.endswith("/repro.py"))
    program = text.split("\n# -- the program ")[1].split("\n# -- the check for")[0]
    return len([line for line in program.splitlines()[1:] if line.strip()])


def importable(python: Path) -> list[str]:
    """Which of torch, torchproof and what torchproof brings an interpreter finds."""
    names = ("torch", "torchproof", "transformers", "rich", "psutil", "numpy")
    asked = f"import importlib.util as u; print(*filter(u.find_spec, {names}))"
    done = subprocess.run(
        [str(python), "-I", "-c", asked], capture_output=True, text=True, check=True
    )
    return done.stdout.split()
