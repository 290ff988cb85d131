"""Programs that show what torch.compile itself does wrong still do, and so do rules.

When an outcome differs from the one that is saved for the installed torch, torch
behaves otherwise than docs/reference/limitations.md says: run
`python -m benchmarks.limitations --restart`, and `make docs`.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from forked_commands import torchproof

from torchproof.checking.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

import torch_parts  # noqa: E402

from benchmarks import limitations  # noqa: E402
from benchmarks.limitations import (  # noqa: E402
    FAILED,
    GONE,
    HOLDS,
    MENDED,
    SEAM,
    STUCK,
    Program,
)

PROGRAMS = {program.name: program for program in limitations.programs()}
INSTALLED = limitations.version(torch.__version__)
CODE_LINES = 36
CODES = {rule.code for rule in RULES}
TOLD = [name for name, one in PROGRAMS.items() if one.code and one.needs != "cuda"]
QUICK = ("other_method", "break_in_loop")


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
    """Each outcome is the one of the documents; of another torch, that it ran."""
    found = outcomes(needs)
    assert found
    wrong = []
    for name, (outcome, said) in found.items():
        known = torch_parts.outcomes(PROGRAMS[name])
        expected = {known[INSTALLED]} if INSTALLED in known else {HOLDS, GONE}
        if outcome not in expected:
            wrong.append(f"{name}: {outcome}, not {' or '.join(expected)} ({said})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_programs_do_what_the_documents_say() -> None:
    assert_as_documented("nothing")


@pytest.mark.slow
def test_programs_for_inductor_do_what_the_documents_say() -> None:
    assert_as_documented("inductor")


@pytest.mark.gpu
def test_programs_for_a_gpu_do_what_the_documents_say() -> None:
    assert_as_documented("cuda")


def without_assertions(text: str) -> str:
    """Its definitions: part `breaks` generates no code, so nothing is wrong there."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assert):
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [""] * (
                node.end_lineno - node.lineno + 1
            )
    return "\n".join(lines) + "\n"


def arguments(program: Program, folder: Path) -> list[str]:
    """A check of what goes wrong alone, a factory with the cheapest backend for it."""
    alone, text = folder / program.path.name, program.path.read_text()
    alone.write_text(text.partition(SEAM)[0] + "\n")
    common = ["--format", "json", "-q", "--fail-on", "never"]
    if not program.is_target:
        return [str(alone), "--effort", "quick", *common]
    alone.write_text(without_assertions(alone.read_text()))
    backend = [] if program.needs == "inductor" else ["--compile", "backend=aot_eager"]
    return [f"{alone}:make", *backend, "--skip", "batch,sequence,latency", *common]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TOLD]
)
def test_check_tells_it_by_its_code(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    if torch_parts.outcomes(program).get(INSTALLED, HOLDS) == GONE:
        pytest.skip(f"does not go wrong under torch {INSTALLED}")
    done = torchproof("check", *arguments(program, tmp_path), cwd=tmp_path)
    # 2 where the program waits for an error: under a check what fails runs in eager.
    assert done.returncode in (0, 2), done.stderr
    codes = {finding["code"] for finding in json.loads(done.stdout)["findings"]}
    assert program.code in codes


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_program_says_what_it_is(program: Program) -> None:
    assert program.group in {*torch_parts.GROUPS, MENDED}
    assert program.code is None or program.code in CODES
    assert program.needs in (None, "inductor", "cuda")
    assert bool(program.way_round) is (program.group != MENDED)
    assert (SEAM in program.source) is (program.group != MENDED)
    first, _, second = program.source.partition(SEAM)
    assert "assert" in first and (not second or "assert" in second)
    code = [ln for ln in program.source.splitlines() if ln and "import" not in ln]
    assert len(code) <= CODE_LINES, len(code)
    if program.reference is not None:
        assert re.match(r"https://(github|docs\.pytorch)", program.reference)


@pytest.mark.parametrize("name", [n for n, one in PROGRAMS.items() if not one.needs])
def test_outcome_is_kept_for_three_versions(name: str) -> None:
    assert {"2.11", "2.13", "2.15"} <= set(torch_parts.outcomes(PROGRAMS[name]))


def test_titles_and_links_are_unique() -> None:
    titles = [program.title for program in PROGRAMS.values()]
    assert len(set(map(torch_parts.anchor, titles))) == len(titles)


def written(folder: Path, first: str, second: str = "") -> Program:
    """A program with these parts."""
    told = '"""Something.\n\nWorkaround: none.\n\nGroup: nothing\n"""\n'
    (folder / "made.py").write_text(f"{told}\n{first}\n{SEAM}{second}\n")
    return limitations.read(folder / "made.py")


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
    monkeypatch.setattr(limitations, "PROGRAMS", tmp_path)
    assert limitations.judged(written(tmp_path, first, second))[0] == expected


def test_a_way_round_is_named_by_its_line_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limitations, "PROGRAMS", tmp_path)
    program = written(tmp_path, "x = 1", "fine = 2\nassert x == 2")
    assert limitations.judged(program)[1] == "AssertionError: assert x == 2"
