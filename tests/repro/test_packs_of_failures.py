"""Real packs of real failures, run by someone who has torch and nothing else.

The author of the programs has a name, a home and a secret, which no pack may contain.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import PROGRAM, Done, run
from opened_packs import run_alone, texts

from torchproof.records import Finding, Run, Symptom, installed_torch, store

FAILURES = Path(__file__).resolve().parent / "failures"
USER = "wilhelmina"
HOME = f"/home/{USER}"
SECRET = "7f3q-Lmx2-09vT-kkUz"


@dataclass(frozen=True)
class Case:
    """A failing program of `failures`, the flags to pack it, and the pack's form."""

    name: str
    kind: str  # of the failure
    form: str
    flags: tuple[str, ...]
    script: bool = False

    def source(self) -> str:
        """The program with private values in it."""
        head, rest = (FAILURES / f"{self.name}.py").read_text().split("\n\n\n", 1)
        notes = f'NOTES = "{HOME}/notes.txt"  # ask {USER}, or use {SECRET}'
        return f"{head}\n\n{notes}\n\n\n{rest}"


# A failure of each form: a script of a saved run, and generated code of a factory.
# test_oracles.py has the other kinds.
CASES = (
    Case("training_script", "graph_break", "program", ("--budget", "5s"), script=True),
    Case("lorentz_distance", "numerics", "graph", ("--minify", "--budget", "3s")),
)
INFINITE = Run(
    "20260102-0304-lorentz",
    "lorentz_distance.py:make",
    "full",
    {"torch": installed_torch(), "device": "cpu"},
    {"calls": 2},
    findings=(
        Finding(
            "NM401",
            "numerics",
            "high",
            "infinity on one side only, in 120 of 120 elements",
            "the code of torch.acosh that Inductor generates is wrong",
            "compute it in float64",
            "lorentz_distance.py",
            38,
            "TaxonomyRanker.forward",
            symptom=Symptom(
                operation="torch.acosh",
                numerics={"verdict": "wrong", "how": "infinity"},
            ),
        ),
    ),
    verb="check",
)


def torchproof(home: Path, *arguments: str) -> Done:
    """The command in the author's project."""
    variables = {"USER": USER, "LOGNAME": USER, "HOME": str(home)}
    variables |= {"REGISTRY_TOKEN": SECRET, "TORCHPROOF_HOME": str(home)}
    return run([*PROGRAM, *arguments], home / "project", variables, 900.0)


def packed(case: Case, folder: Path) -> Path:
    home = folder / USER
    (home / "project").mkdir(parents=True)
    (home / "project" / f"{case.name}.py").write_text(case.source())
    archive, runs = folder / "bug.tar.gz", home / "project" / ".torchproof" / "runs"
    if case.script:
        checked = torchproof(home, "check", f"{case.name}.py", "--effort", "quick")
        assert checked.returncode in (0, 1), checked.stderr
    else:  # what a check, which measures for a minute, finds
        store.save(INFINITE, runs)
    (saved,) = runs.iterdir()
    words = ("pack", saved.name, "--for", "repro", *case.flags, "-o", str(archive))
    done = torchproof(home, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return archive


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.]+(e[+-]\d+)?", "N", line)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pack_fails_as_stated_with_torch_alone(case: Case, tmp_path: Path) -> None:
    archive = packed(case, tmp_path)
    files = texts(archive)
    manifest = json.loads(files["manifest.json"])
    names = {name for name in files if not name.endswith(" itself")}
    assert {*manifest["files"], "manifest.json"} == names
    details: dict[str, Any] = manifest["details"]
    assert details["symptom"]["headline"] in files["README.md"]
    assert (details["symptom"]["kind"], details["form"]) == (case.kind, case.form)
    code, verdict = run_alone(archive, tmp_path / "empty")
    assert code == 1, verdict
    assert without_numbers(verdict) == without_numbers(details["verified"]["line"])
    assert details["size"]["last"] <= details["size"]["first"]
    for name, text in files.items():
        for private in (USER, HOME, SECRET):
            assert private not in text, name
