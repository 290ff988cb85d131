"""Follows docs/getting-started.md from top to bottom, and fills in the output.

    python scripts/docs/getting_started.py --write

runs every command of the page in an empty directory and saves the measured runs under
benchmarks/results/getting-started. `make docs` renders those, and runs the two checks
again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from tables import fenced

from torchproof.records import Run, store
from torchproof.report import render

PAGE = ROOT / "docs" / "getting-started.md"
SAVED = ROOT / "benchmarks" / "results" / "getting-started"
MEASURING = ("bench", "tune")
EXPECTED = {
    "first check": 1,
    "proved fixes": 1,
}  # exit codes other than 0, by name of the step


@dataclass(frozen=True)
class Step:
    """A command of the page, with its exit code and what it printed."""

    name: str
    line: str
    code: int
    stdout: str
    stderr: str


def walk(folder: Path, *, measure: bool = True) -> Iterator[Step]:
    """Writes the page's files into a folder, applies its diff, runs its commands."""
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    checks = 0
    for language, text in fences:
        if language == "python":
            name = re.match(r"# file: (\S+)\n", text)
            assert name, f"not a file: {text}"
            (folder / name[1]).write_text(text)
        elif language == "diff":
            apply(text, folder / "ranker.py")
        elif language == "bash":
            for line in filter(runnable, text.splitlines()):
                checks += " check " in line
                name_of_step = named(line, checks)
                if measure or name_of_step not in (*MEASURING, "serve"):
                    yield run(name_of_step, line, folder)


def apply(diff: str, file: Path) -> None:
    """Replaces the lines with a minus by those with a plus."""
    lines = diff.splitlines()
    before, after = (
        "".join(f"{line[1:]}\n" for line in lines if line.startswith(sign))
        for sign in "-+"
    )
    source = file.read_text()
    assert source.count(before) == 1
    file.write_text(source.replace(before, after))


def runnable(line: str) -> bool:
    return bool(line) and not line.startswith("pip ")


def named(line: str, checks: int) -> str:
    words = shlex.split(line)
    if words[0] == "python":
        return "serve"
    return ("first check", "second check")[checks - 1] if "check" in words else words[1]


def run(name: str, line: str, folder: Path) -> Step:
    words = shlex.split(line)
    module = ["-m", "torchproof"] if words[0] == "torchproof" else []
    done = subprocess.run(
        [sys.executable, *module, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return Step(name, line, done.returncode, done.stdout, done.stderr)


def search_path() -> str:
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join(filter(None, [str(ROOT / "src"), given]))


def expect(step: Step) -> Step:
    wanted = EXPECTED.get(step.name, 0)
    assert step.code == wanted, f"{step.line}: exit code {step.code}\n{step.stderr}"
    return step


# -- what the page shows ---------------------------------------------------------------


def checks() -> dict[str, str]:
    """The output of the two checks, by the name of the part."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [expect(step) for step in walk(Path(folder), measure=False)]
    return {step.name: shown(step.stdout) for step in steps if "check" in step.name}


def shown(text: str, *, effects: bool = True) -> str:
    """Without findings after the first, and without its effects if they are many."""
    head, *found, end = text.rstrip("\n").split("\n\n")
    first = found[: 2 if found[0].startswith("Fix first") else 1]
    if not effects:
        first[-1] = first[-1].partition("\n   also explains")[0]
    rest = ["..."] if len(found) > len(first) else []
    return fenced("\n\n".join([head, *first, *rest, end]))


def saved(name: str) -> Run:
    """The run that a command of the page saved."""
    return store.read(SAVED / f"{name}.json")


def bench() -> str:
    text = render(saved("bench"), "text").rstrip("\n")
    head, bars, costs, *_ = text.split("\n\n")
    end = text[text.index("Decision:") :]
    return fenced("\n\n".join([head, bars, costs, "...", end]))


def tune() -> str:
    text = render(saved("tune"), "text").rstrip("\n")
    head, finals, _ = text.split("\n\n", 2)
    end = text[text.index("Decision:") :]
    return fenced("\n\n".join([head, finals, "...", end]))


def serve() -> str:
    return fenced((SAVED / "serve.txt").read_text().rstrip("\n"))


def conditions() -> str:
    where = saved("bench").environment
    return (
        "A script ran the commands of this page and captured their output, on a CPU"
        f" ({where['machine']}, {where['cores']} cores) with torch {where['torch']} and"
        f" Python {where['python']}. Your times will differ. `python"
        " scripts/docs/getting_started.py --write` repeats it in a checkout."
    )


TABLES: dict[str, Callable[[], str]] = {
    "bench": bench,
    "tune": tune,
    "serve": serve,
    "conditions": conditions,
}


def write() -> None:
    """Measures, and saves what is shown."""
    SAVED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in map(expect, walk(folder)):
            print(f"{step.line}\n{step.stdout}")
            if step.name in MEASURING:
                latest = max((folder / ".torchproof" / "runs").iterdir(), key=_age)
                saved = json.loads((latest / "run.json").read_text())
                (SAVED / f"{step.name}.json").write_text(json.dumps(saved, indent=1))
            elif step.name == "serve":
                (SAVED / "serve.txt").write_text(step.stdout)
        recipe = (folder / "torchproof.toml").read_text()
        (SAVED / "torchproof.toml").write_text(recipe)


def _age(path: Path) -> float:
    return path.stat().st_mtime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    write()
