"""Which files a target's imports find: those that plain Python would find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchproof.process import spawn
from torchproof.records import UserError
from torchproof.targets.target import load, parse

FACTORY = """\
import json, random, types
import torch
import neighbour

def make():
    assert random.random() < 2
    return torch.nn.Linear(2, 2), [(torch.ones(1, 2),)] * 2
"""
SCRIPT = """\
import random, sys
from pathlib import Path
from sched import OWN  # a standard name that the child does not need itself
import neighbour
import torch

here = str(Path(__file__).resolve().parent)
assert sys.path[0] == here and sys.path.count(here) == 1
assert str(Path.cwd()) not in sys.path and "" not in sys.path
assert random.random() < 2
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
"""
SHADOWS = ("random", "types", "json", "statistics", "queue", "tomllib", "platform")


def check(target: str, cwd: Path) -> tuple[int, dict[str, Any], str]:
    """The command `torchproof`, which does not search the working directory itself."""
    flags = ["--format", "json", "--effort", "quick"]
    program = [sys.executable, "-P", "-m", "torchproof", "check", target, *flags]
    done = subprocess.run(
        program, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def shadow(folder: Path) -> None:
    """Files with the names of standard modules, which must not be imported."""
    folder.mkdir(exist_ok=True)
    for name in SHADOWS:
        (folder / f"{name}.py").write_text("raise RuntimeError('not standard')\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shadow(tmp_path)
    inner = tmp_path / "inner"
    shadow(inner)
    (inner / "neighbour.py").touch()
    (inner / "sched.py").write_text("OWN = 1\n")
    (inner / "factory.py").write_text(FACTORY)
    (inner / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "inner/factory.py:make",
        pytest.param("inner/script.py", marks=pytest.mark.slow),
    ],
)
def test_no_file_replaces_a_standard_module(project: Path, target: str) -> None:
    """Neither one of the working directory nor a neighbour of the target."""
    code, run, stderr = check(target, project)
    assert (code, run.get("findings")) == (0, []), stderr


@pytest.mark.parametrize("layout", [None, 1])
def test_no_child_searches_the_working_directory(
    tmp_path: Path, layout: int | None
) -> None:
    (tmp_path / "cwd").mkdir()
    with (
        (tmp_path / "output").open("w") as output,
        spawn(
            "-m", "site", cwd=tmp_path / "cwd", output=output, layout=layout
        ) as child,
    ):
        child.wait(60)
    printed = (tmp_path / "output").read_text()
    assert "sys.path" in printed
    assert "cwd" not in printed
    assert "Warning" not in printed


def test_module_of_the_working_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "outer_module.py").touch()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "factory.py").write_text("import outer_module\n")
    with pytest.raises(UserError, match=r"set PYTHONPATH=\.") as caught:
        load(parse("inner/factory.py:make"))
    assert "No module named 'outer_module'" in str(caught.value)


def test_module_of_a_package_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "found_package").mkdir()
    (tmp_path / "found_package" / "factory.py").write_text(
        "def make():\n    return len, [([],)]\n"
    )
    assert load(parse("found_package.factory:make")).fn is len
