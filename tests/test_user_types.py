"""`py.typed`: a user's program, checked by mypy against the installed package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "user_types" / "user_program.py"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torchproof as a wheel installs it, and torch beside it."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "src" / "torchproof", site / "torchproof")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def checked(environment: Path, program: Path, cache: Path) -> str:
    """What mypy says in its strict mode, outside of the repository."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-incremental"),
            *("--config-file", "", "--python-executable", environment / "bin/python"),
            *("--cache-dir", cache, program),
        ],
        cwd=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_users_program_passes_strict_checks(
    environment: Path, tmp_path: Path
) -> None:
    said = checked(environment, PROGRAM, tmp_path)
    assert said.startswith("Success: no issues found in 1 source file"), said
