"""`make dist` and `make compat`: what they find wrong; and one version everywhere."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compat  # noqa: E402
import distributions  # noqa: E402

import torchproof  # noqa: E402

REPOSITORY = {"README.md", "src/torchproof/cli.py", "src/torchproof/report/page.html"}
INFO = {f"torchproof-1.0.dist-info/{name}" for name in distributions.METADATA}
WHEEL = INFO | {"torchproof/cli.py", "torchproof/report/page.html"}
MAN = "torchproof-1.0.data/data/share/man/man1/torchproof.1"
WHEEL |= {MAN}
SOURCE = REPOSITORY | {"PKG-INFO", ".gitignore"}
PAGE, TEST = "torchproof/report/page.html", "tests/test_cli.py"


def wheel(path: Path, names: set[str]) -> list[str]:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return distributions.wheel_differences(path, REPOSITORY)


def source(path: Path, names: set[str]) -> list[str]:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"torchproof-1.0/{name}"), io.BytesIO())
    return distributions.source_differences(path, REPOSITORY)


@pytest.mark.parametrize(
    ("differences", "names", "found"),
    [
        (wheel, WHEEL, []),
        (wheel, WHEEL - {PAGE}, [f"lacks {PAGE}"]),
        (wheel, WHEEL - {MAN}, [f"lacks {MAN}"]),
        (wheel, WHEEL | {TEST}, [f"should not contain {TEST}"]),
        (source, SOURCE, []),
        (source, SOURCE - {"README.md"}, ["lacks README.md"]),
        (source, SOURCE | {"notes.txt"}, ["should not contain notes.txt"]),
    ],
)
def test_contents(
    differences: Callable[[Path, set[str]], list[str]],
    names: set[str],
    found: list[str],
    tmp_path: Path,
) -> None:
    assert differences(tmp_path / "archive", names) == found


@pytest.mark.parametrize(
    ("exited", "stdout", "stderr", "passed"),
    [
        (1, "GB101 high", "", True),
        (0, "GB101 high", "", False),
        (1, "no findings", "", False),
        (1, "GB101 high", "Traceback (most recent call last):\n", False),
    ],
)
def test_a_command_is_judged(
    tmp_path: Path, exited: int, stdout: str, stderr: str, passed: bool
) -> None:
    command = distributions.Command("torchproof check a.py", 1, "GB101")
    done = subprocess.CompletedProcess([], exited, stdout, stderr)
    assert bool(distributions.problem_of(command, done, tmp_path)) is not passed


def test_a_file_that_is_not_written_is_a_failure(tmp_path: Path) -> None:
    command = distributions.Command("torchproof show", 0, "<html", writes="run.html")
    done = subprocess.CompletedProcess([], 0, "<html", "")
    assert distributions.problem_of(command, done, tmp_path)
    (tmp_path / "run.html").write_text("<html>")
    assert not distributions.problem_of(command, done, tmp_path)


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, date = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", changes, re.M)[0]
    assert project["version"] == torchproof.__version__ == newest
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = dict(re.findall(r"^(\S+): \"?([^\"\n]+)", citation, re.M))
    assert (cited["version"], cited["date-released"]) == (newest, date)
    assert cited["license"] == project["license"]
    page = (ROOT / "docs" / "man" / "torchproof.1").read_text()
    assert f'"{date}" "torchproof {newest}"' in page


def test_outcomes_of_a_version_of_torch_are_counted() -> None:
    outcomes = {"a.py::b[1]": "passed", "a.py::c": "failed", "a.py::d": "skipped"}
    rows = [{"test": name, "outcome": each} for name, each in outcomes.items()]
    assert compat.outcomes(rows) == {
        "counts": {"passed": 1, "failed": 1, "skipped": 1},
        "failed": ["a.py::c"],
    }
    assert compat.TESTS and all((ROOT / each).exists() for each in compat.TESTS)
