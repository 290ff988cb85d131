"""`make demo`: its commands parse, and it prints the files that they write."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from torchproof.cli import verbs
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


def commands(script: str) -> list[argparse.Namespace]:
    lines = [line for line in script.splitlines() if line.startswith(TORCHPROOF)]
    words = [shlex.split(line.partition("||")[0])[1:] for line in lines]
    return [verbs._parser().parse_args(each) for each in words]


def test_the_commands_parse_and_name_a_workload_and_its_original(script: str) -> None:
    verbs = [command.verb.__name__ for command in commands(script)]
    assert verbs == ["check", "show", "check", "bench", "show", "tune", "show"]
    ran = [c.target for c in commands(script) if c.verb.__name__ != "show"]
    names = [target.removeprefix("workload:") for target in ran]
    assert set(names) <= set(WORKLOADS)
    original, fixed, *measured = names
    assert original == f"{fixed}-original" and len(set(measured)) == 1


def test_the_files_that_are_written_are_printed_with_their_whole_path(
    script: str,
) -> None:
    parsed = commands(script)
    pages = {c.output for c in parsed if c.verb.__name__ == "show"}
    [recipe] = [c.recipe for c in parsed if c.verb.__name__ == "tune"]
    printed = "\n".join(line for line in script.splitlines() if "echo" in line)
    paths = set(re.findall(rf"{re.escape(str(ROOT))}/(\S+\.(?:html|toml))", printed))
    assert paths == {str(path) for path in (*pages, recipe)}
    assert len(pages) == 3 and f"cat {recipe}" in script
