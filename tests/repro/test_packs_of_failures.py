"""Real packs of real failures, run by someone who has torch and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import strangers
from commands import run
from strangers import Case

from torchproof.records import Finding, Run, installed_torch, store

# A failure of each form: a script of a saved run, and generated code of a factory.
# test_repro_command.py packs a factory, test_oracles.py has the other kinds.
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
        ),
    ),
    verb="check",
)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of someone who has torch alone."""
    python = strangers.bare_python(tmp_path_factory.mktemp("stranger") / "venv")
    names = ("torch", "torchproof", "transformers", "rich", "psutil")
    program = f"import importlib.util as u; print(*filter(u.find_spec, {names}))"
    done = run([python, "-I", "-c", program])
    assert done.stdout.split() == ["torch"]
    return python


def packed(case: Case, folder: Path) -> Path:
    home = folder / strangers.USER
    (home / "project").mkdir(parents=True)
    (home / "project" / f"{case.name}.py").write_text(case.source())
    archive, runs = folder / "bug.tar.gz", home / "project" / ".torchproof" / "runs"
    if case.script:
        checked = strangers.torchproof(home, "check", case.target, "--effort", "quick")
        assert checked.returncode in (0, 1), checked.stderr
    else:  # what a check, which measures for a minute, finds
        store.save(INFINITE, runs)
    (saved,) = runs.iterdir()
    done = strangers.torchproof(
        home, "pack", saved.name, "--for", "repro", *case.flags, "-o", str(archive)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return archive


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.]+(e[+-]\d+)?", "N", line)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pack_fails_as_stated_with_torch_alone(
    case: Case, tmp_path: Path, python: str
) -> None:
    archive = packed(case, tmp_path)
    texts = strangers.texts(archive)
    details: dict[str, Any] = json.loads(texts["manifest.json"])["details"]
    assert (details["symptom"]["kind"], details["form"]) == (case.kind, case.form)
    code, verdict = strangers.run_alone(archive, tmp_path / "empty", python)
    assert code == 1, verdict
    assert without_numbers(verdict) == without_numbers(details["verified"]["line"])
    assert details["size"]["last"] <= details["size"]["first"]
    for name, text in texts.items():
        for private in (strangers.USER, strangers.HOME, strangers.SECRET):
            assert private not in text, name
