"""Real packs of real failures, run by someone who has torch and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import strangers
from strangers import Case

_SHORT = ("--budget", "10s")
# A failure of each form, of a factory and a script, with and without generated code.
CASES = (
    Case("item_read", "graph_break", "program", ("--effort", "quick", *_SHORT)),
    Case("training_script", "graph_break", "program", _SHORT, script=True),
    Case(
        "nothing_compiled",
        "no_op",
        "program",
        ("--effort", "quick", "--as-written", *_SHORT),
    ),
    Case("step_counter", "recompile", "program", _SHORT),
    Case("tide_operator", "compile_error", "program", ("--effort", "quick", *_SHORT)),
    Case("lorentz_distance", "numerics", "graph", ("--minify", "--budget", "30s")),
)
SAVED = ("step_counter", "training_script")  # packed from a saved run of check


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of someone who has torch alone."""
    python = strangers.bare_python(tmp_path_factory.mktemp("stranger") / "venv")
    names = ("torch", "torchproof", "transformers", "rich", "psutil")
    program = f"import importlib.util as u; print(*filter(u.find_spec, {names}))"
    done = subprocess.run(
        [python, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["torch"]
    return python


def packed(case: Case, folder: Path) -> Path:
    home = folder / strangers.USER
    (home / "project").mkdir(parents=True)
    (home / "project" / f"{case.name}.py").write_text(case.source())
    what, archive = case.target, folder / "bug.tar.gz"
    if case.name in SAVED:
        checked = strangers.torchproof(home, "check", what, "--effort", "quick")
        assert checked.returncode in (0, 1), checked.stderr
        (run,) = (home / "project" / ".torchproof" / "runs").iterdir()
        what = run.name
    done = strangers.torchproof(
        home, "pack", what, "--for", "repro", *case.flags, "-o", str(archive)
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
