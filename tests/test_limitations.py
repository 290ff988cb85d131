"""Programs that show what torch.compile itself does wrong still do, and so do rules.

When an outcome differs from the one that is saved for the installed torch, torch
behaves otherwise than docs/reference/limitations.md says: run
`python -m benchmarks.limitations --restart`, and `make docs`.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof import known_problems
from torchproof.checking import rules
from torchproof.known_problems import SEAM, KnownProblem

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

import torch_parts  # noqa: E402

from benchmarks import limitations  # noqa: E402
from benchmarks.limitations import (  # noqa: E402
    FAILED,
    GONE,
    HOLDS,
    STUCK,
)

PROGRAMS = {program.name: program for program in known_problems.every()}
INSTALLED = limitations.version(torch.__version__)
CODE_LINES = 36
CODES = {rule.code for rule in rules.RULES}


def outcomes(needs: str) -> dict[str, tuple[str, str]]:
    """What came of each program that needs this, with what it said."""
    device = "cuda" if needs == "cuda" else "cpu"
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = ["--device", device, "--needs", needs, "--restart", "-o", file.name]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.limitations", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        found = json.loads(Path(file.name).read_text())["rows"]
    return {name: (one["outcome"], one["said"]) for name, one in found.items()}


def assert_as_documented(needs: str) -> None:
    """Each outcome is that of the documents; on other torches or processors it ran."""
    found = outcomes(needs)
    assert found
    wrong = []
    for name, (outcome, said) in found.items():
        known = torch_parts.outcomes(PROGRAMS[name])
        is_known = INSTALLED in known and (needs != "inductor" or on_its_processor())
        expected = {known[INSTALLED]} if is_known else {HOLDS, GONE}
        if outcome not in expected:
            wrong.append(f"{name}: {outcome}, not {' or '.join(expected)} ({said})")
    assert not wrong, "\n".join(wrong)


def on_its_processor() -> bool:
    """Whether Inductor's C++ was compiled for this architecture in the documents."""
    saved = ROOT / "benchmarks" / "results" / f"limitations-{INSTALLED}-cpu.json"
    arch: str = json.loads(saved.read_text())["machine"]["arch"]
    return arch == platform.machine()


@pytest.mark.slow
@pytest.mark.parametrize("needs", ["nothing", "inductor"])
def test_programs_do_what_the_documents_say(needs: str) -> None:
    assert_as_documented(needs)


@pytest.mark.gpu
def test_programs_for_a_gpu_do_what_the_documents_say() -> None:
    assert_as_documented("cuda")


@pytest.mark.slow
def test_check_reports_the_code_of_each_script(
    tmp_path: Path, observe_all: Any
) -> None:
    """The others are targets; tests of their rules have the same defects."""
    scripts = [
        one
        for one in PROGRAMS.values()
        if one.code and one.needs != "cuda" and not one.is_target
        if torch_parts.outcomes(one).get(INSTALLED, HOLDS) != GONE
    ]
    for one in scripts:
        wrong = one.path.read_text().partition(SEAM)[0]
        (tmp_path / one.path.name).write_text(wrong + "\n")
    observations = observe_all([(str(tmp_path / one.path.name), {}) for one in scripts])
    missing = {
        one.name: codes
        for one, observation in zip(scripts, observations, strict=True)
        if one.code not in (codes := {f.code for f in rules.check(observation)})
    }
    assert scripts and not missing


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_program_describes_itself(program: KnownProblem) -> None:
    assert program.group in torch_parts.GROUPS
    assert program.code is None or program.code in CODES
    assert program.needs in (None, "inductor", "cuda")
    assert program.workaround
    first, _, second = program.source.partition(SEAM)
    assert "assert" in first and "assert" in second
    code = [ln for ln in program.source.splitlines() if ln and "import" not in ln]
    assert len(code) <= CODE_LINES, len(code)
    if program.reference is not None:
        assert re.match(r"https://(github|docs\.pytorch)", program.reference)
    if not program.needs:
        assert {"2.11", "2.13", "2.15"} <= set(torch_parts.outcomes(program))


def test_titles_and_links_are_unique() -> None:
    titles = [program.title for program in PROGRAMS.values()]
    assert len(set(map(torch_parts.anchor, titles))) == len(titles)


def written(folder: Path, first: str, second: str = "") -> KnownProblem:
    """A program with these parts."""
    told = '"""Something.\n\nWorkaround: none.\n\nGroup: nothing\n"""\n'
    (folder / "made.py").write_text(f"{told}\n{first}\n{SEAM}{second}\n")
    return known_problems.read(folder / "made.py")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("x = 1\nassert x == 1", "assert x == 1", HOLDS),
        ("assert 1 == 2", "", GONE),
        ("assert True", "assert 1 == 2", STUCK),
        ("assert True", "raise ValueError('no')", STUCK),
        ("import no_such_module", "", FAILED),
        # What somebody else asserts says nothing of the program.
        ("import unittest; unittest.TestCase().assertTrue(False)", "", FAILED),
    ],
)
def test_outcome_of_a_program(
    first: str,
    second: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_problems, "FOLDER", tmp_path)
    assert limitations.judged(written(tmp_path, first, second))[0] == expected


def test_a_workaround_is_named_by_its_line_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_problems, "FOLDER", tmp_path)
    program = written(tmp_path, "x = 1", "fine = 2\nassert x == 2")
    assert limitations.judged(program)[1] == "AssertionError: assert x == 2"
