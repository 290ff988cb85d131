"""Real packs of real failures, run by someone who has torch and nothing else."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import commands
import failing
import pytest
from failing import CASES, FAILURES, Case, Packed

SHARED = {"make", "forward", "before_call"}
WORDS = re.compile(r"[A-Za-z]\w{5,}")
SMALL = ("lorentz_distance", "item_read", "printed_progress", "library_experts")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of someone who has torch alone."""
    python = failing.bare_python(tmp_path_factory.mktemp("stranger") / "venv")
    assert failing.importable(python) == ["torch"]
    return python


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def made(case: Case, folder: Path, *more: str) -> Packed:
    packed = failing.packed(case, folder, *more)
    assert packed.code == 0, packed.stderr[-3000:]
    assert packed.manifest["details"]["symptom"]["kind"] == case.kind
    assert packed.manifest["details"]["form"] in case.forms
    return packed


def assert_fails_as_stated(packed: Packed, folder: Path, python: Path) -> None:
    ran = failing.ran(failing.unpacked(packed.path, folder / "empty"), python)
    assert ran.code == 1, ran
    stated = packed.manifest["details"]["verified"]["line"]
    assert without_numbers(ran.verdict) == without_numbers(stated)
    assert ran.verdict.startswith("FAILS AS STATED: ")


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.]+(e[+-]\d+)?", "N", line)


def assert_private(packed: Packed, case: Case) -> None:
    """Neither who packed it nor what the program says is in any file."""
    everywhere = failing.texts(packed.path)
    planted = {failing.USER, failing.HOME, failing.SECRET}
    for name, text in everywhere.items():
        assert not [one for one in planted if one in text], name
        words = set(re.findall(r"\w+", text))
        assert not own_names(case) & words, name
        assert not [one for one in own_texts(case) if one in text], name


def own_names(case: Case) -> set[str]:
    """What the program calls its classes and functions."""
    tree = ast.parse((FAILURES / f"{case.name}.py").read_text())
    kinds = ast.ClassDef | ast.FunctionDef
    named = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return {name for name in named - SHARED if WORDS.fullmatch(name)}


def own_texts(case: Case) -> set[str]:
    """Comments and strings of several words."""
    source = (FAILURES / f"{case.name}.py").read_text()
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            text = token.string.strip("#\"' \n")
            found |= {text} if " " in text else set()
    return found


def assert_told(packed: Packed, folder: Path) -> None:
    """The report, the listing and `show` tell the same."""
    texts = failing.texts(packed.path)
    (readme,) = (v for k, v in texts.items() if k.endswith("/README.md"))
    headline = packed.manifest["details"]["symptom"]["headline"]
    assert headline in readme and "python repro.py" in readme
    inside = {k.partition("/")[2] for k in texts if not k.endswith(" itself")}
    inside.discard("manifest.json")
    assert set(packed.manifest["files"]) == inside
    shown = commands.torchproof("show", str(packed.path), cwd=folder)
    assert shown.returncode == 0, shown.stderr
    for name in inside:
        assert name.partition("/")[0] in shown.stdout
    assert headline[:40] in " ".join(shown.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pack_fails_as_stated_where_there_is_torch_alone(
    case: Case, tmp_path: Path, stranger: Path
) -> None:
    packed = made(case, tmp_path)
    assert_fails_as_stated(packed, tmp_path, stranger)
    assert_told(packed, tmp_path)
    assert_private(packed, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_minified_pack_is_a_quarter_at_most(
    name: str, tmp_path: Path, stranger: Path
) -> None:
    case = case_of(name)
    packed = made(case, tmp_path, "--minify", "--budget", "4m")
    size = packed.manifest["details"]["size"]
    whole = size["first"]
    if "nodes" not in size["unit"]:
        whole = len((FAILURES / f"{name}.py").read_text().splitlines())
    assert size["last"] <= whole / 4
    assert packed.manifest["details"]["minified"]
    assert_fails_as_stated(packed, tmp_path, stranger)
    assert_private(packed, case)


@pytest.mark.slow
def test_source_that_is_asked_for_is_the_program_as_it_is_written(
    tmp_path: Path, stranger: Path
) -> None:
    case = case_of("value_branch")
    packed = made(case, tmp_path, "--include", "source")
    texts = failing.texts(packed.path)
    (program,) = (v for k, v in texts.items() if k.endswith("/repro.py"))
    written = (FAILURES / "value_branch.py").read_text()
    for line in written.splitlines():
        assert line in program
    assert not [k for k, v in texts.items() if failing.SECRET in v or failing.USER in v]
    assert_fails_as_stated(packed, tmp_path, stranger)


@pytest.mark.slow
def test_a_saved_run_is_packed_as_its_target_is(tmp_path: Path, stranger: Path) -> None:
    case = case_of("printed_progress")
    source = FAILURES / f"{case.name}.py"
    (tmp_path / source.name).write_text(source.read_text())
    checked = commands.torchproof("check", case.target, *case.flags, cwd=tmp_path)
    assert checked.returncode in (0, 1), checked.stderr
    path = tmp_path / "it.tar.gz"
    done = commands.torchproof(
        "pack", case.name[:3], "--for", "repro", "-o", str(path), cwd=tmp_path
    )
    assert done.returncode == 2 and repr(case.name[:3]) in done.stderr
    (run,) = (tmp_path / ".torchproof" / "runs").iterdir()
    done = commands.torchproof(
        "pack", run.name, "--for", "repro", "-o", str(path), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    packed = Packed(0, done.stdout, done.stderr, 0.0, path)
    assert_fails_as_stated(packed, tmp_path, stranger)


@pytest.mark.slow
def test_a_failure_that_does_not_come_back_is_no_pack(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    (tmp_path / "data").mkdir()
    path = tmp_path / "it.tar.gz"
    done = commands.torchproof(
        *("pack", "once.py:make", "--for", "repro", "--effort", "quick"),
        *("-o", str(path)),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchproof: ") and "torch.compile: graph" in last
    assert "DOES NOT FAIL" in last
    left = {each.name for each in tmp_path.iterdir()}
    assert left <= {"once.py", "data", ".torchproof", "__pycache__"}


ONCE = """
from pathlib import Path

import torch


class Loud(torch.nn.Module):
    def __init__(self, loud):
        super().__init__()
        self.loud = loud

    def forward(self, x):
        if self.loud:
            print("for the first time")
        return x.sin() + 1


def make():
    # Loud in the first process that finds the folder, and never again.
    here = Path("data")
    loud = here.is_dir() and not (here / "seen").exists()
    if here.is_dir():
        (here / "seen").touch()
    return Loud(loud), [(torch.ones(3),)]
"""
