"""Which files a target's imports find: those that plain Python would find."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Done

from torchproof.process import spawn

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
import neighbour
import torch

here = str(Path(__file__).resolve().parent)
assert sys.path[0] == here and sys.path.count(here) == 1
assert str(Path.cwd()) not in sys.path and "" not in sys.path
assert random.random() < 2
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
"""
SHADOWS = ("random", "types", "json", "statistics", "queue", "tomllib", "platform")


def command(*arguments: str, cwd: Path) -> Done:
    """The command `torchproof`, which does not search the working directory itself."""
    program = [sys.executable, "-P", "-m", "torchproof", *arguments]
    return subprocess.run(
        program, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def check(
    target: str, cwd: Path, run: Callable[..., Done] = command
) -> tuple[int, dict[str, Any], str]:
    told = ["check", target, "--format", "json", "--effort", "quick"]
    done = run(*told, cwd=cwd)
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
    inner.mkdir()
    (inner / "neighbour.py").touch()
    (inner / "factory.py").write_text(FACTORY)
    (inner / "script.py").write_text(SCRIPT)
    (inner / "__init__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "inner/factory.py:make",
        pytest.param("inner/script.py", marks=pytest.mark.slow),
    ],
)
def test_file_of_the_working_directory_replaces_no_standard_module(
    project: Path, target: str
) -> None:
    code, run, stderr = check(target, project)
    assert (code, run.get("findings")) == (0, []), stderr


@pytest.mark.slow
def test_module_is_found_from_the_working_directory(project: Path) -> None:
    inner = project / "inner"
    source = FACTORY.replace("import neighbour", "from inner import neighbour")
    (inner / "factory.py").write_text(source)
    code, run, stderr = check("inner.factory:make", project)
    assert (code, run.get("findings")) == (0, []), stderr


@pytest.mark.slow
def test_neighbour_of_a_factory_replaces_no_standard_module(project: Path) -> None:
    inner = project / "inner"
    shadow(inner)
    code, run, stderr = check("factory.py:make", inner)
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


def test_module_of_the_working_directory_is_named(project: Path) -> None:
    (project / "outer.py").touch()
    (project / "inner" / "factory.py").write_text("import outer\n")
    code, _, stderr = check("inner/factory.py:make", project)
    assert code == 2
    assert "No module named 'outer'" in stderr
    assert "python inner/factory.py does not search: set PYTHONPATH=." in stderr


@pytest.mark.slow
def test_program_keeps_its_own_modules_with_standard_names(tmp_path: Path) -> None:
    (tmp_path / "profile.py").write_text("OWN = 1\n")
    (tmp_path / "script.py").write_text("from profile import OWN\nimport torch\n")
    code, _, stderr = check("script.py", tmp_path)
    assert "ImportError" not in stderr
    assert code in {0, 1}
