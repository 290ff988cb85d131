"""`make demo`: its commands parse, and it prints what it wrote and what to do next."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchproof.cli import main
from torchproof.cli.parser import parsed
from torchproof.targets.workloads import WORKLOADS

ROOT = Path(__file__).parent.parent
TORCHPROOF = ".venv/bin/torchproof"


@pytest.fixture(scope="module")
def script() -> str:
    """What `make demo` runs after the installation, one command a line."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    planned = subprocess.run(
        [make, "-n", "--no-print-directory", "-o", ".venv/.installed", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return planned.stdout.replace("\\\n", " ")


def commands(script: str) -> list[Any]:
    lines = [line for line in script.splitlines() if line.startswith(TORCHPROOF)]
    words = [shlex.split(line.partition("||")[0])[1:] for line in lines]
    return [parsed(each) for each in words]


def test_demo_runs_a_workload_and_its_original(script: str) -> None:
    names = [command.verb() for command in commands(script)]
    assert names == ["check", "show", "check", "bench", "show"]
    targets = [c.target for c in commands(script) if c.verb() != "show"]
    original, fixed, measured = (t.removeprefix("workload:") for t in targets)
    assert {original, fixed, measured} <= set(WORKLOADS)
    assert original == f"{fixed}-original"


def test_demo_prints_the_files_that_it_wrote(script: str) -> None:
    pages = {c.output for c in commands(script) if c.verb() == "show"}
    printed = "\n".join(line for line in script.splitlines() if "echo" in line)
    paths = set(re.findall(rf"{re.escape(str(ROOT))}/(\S+\.html)", printed))
    assert paths == {str(path) for path in pages}


def test_last_lines_say_what_to_type_next(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factory that they show can be checked with the command that they show."""
    shown = re.findall(r'^echo "  (.*)"$', script.partition("== Next")[2], re.M)
    typed = [line for line in shown if line.startswith(TORCHPROOF)]
    assert [line.split()[1] for line in typed] == ["check", "check", "tune"]
    factory = [line for line in shown if line not in typed]
    assert len(factory) == 3
    monkeypatch.chdir(tmp_path)
    Path("my_model.py").write_text("\n".join(factory))
    Path("path/to").mkdir(parents=True)
    Path("path/to/your_script.py").write_text("import torch\n")
    for line in typed[:2]:
        assert main([*line.split()[1:], "--effort", "static", "-q"]) == 0
