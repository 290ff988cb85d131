"""The documents: what they show runs, what they take from the code is current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import Done
from test_cli import COUNT_FIELDS, FINDING_FIELDS, FLAGS, RUN_FIELDS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
CHECK = ROOT / "docs" / "check.md"

sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402


def blocks(path: Path, *languages: str) -> Iterator[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.M | re.S)
    return (text for language, text in fences if language in languages)


def commands(path: Path) -> list[str]:
    """The command lines a document shows."""
    shown = [line for text in blocks(path, "bash") for line in text.splitlines()]
    for text in blocks(path, "console"):
        shown += [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    return [line for line in shown if shlex.split(line, comments=True)]


def program(line: str) -> str:
    """The first word that is no variable."""
    words = shlex.split(line, comments=True)
    return next(word for word in words if not re.match(r"\w+=", word))


def programs() -> tuple[dict[str, str], dict[Path, str]]:
    """Python in the documents: files by their name, and one program a document."""
    files, snippets = {}, {}
    for path in DOCUMENTS:
        for text in blocks(path, "python"):
            named = re.match(r"# file: (\S+)\n", text)
            if named:
                files[named[1]] = text
            else:
                snippets[path] = text
    return files, snippets


def run_all(path: Path, lines: list[str], folder: Path) -> dict[str, Done]:
    """A document's commands, one after the other, where its files lie."""
    files, snippets = programs()
    for name, text in files.items():
        (folder / name).write_text(text)
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    steps: dict[str, str | list[str]] = {line: line for line in lines}
    if path in snippets:
        steps["python"] = [sys.executable, "-c", snippets[path]]
    return {
        name: subprocess.run(
            step,
            shell=isinstance(step, str),
            cwd=folder,
            env={**os.environ, "PATH": search},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for name, step in steps.items()
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Every distinct command once; two documents at a time."""
    jobs, seen = {}, set[str]()
    for path in sorted(DOCUMENTS, key=lambda path: path != CHECK):
        wanted = [line for line in commands(path) if program(line) in RUNNERS]
        jobs[path] = [line for line in wanted if line not in seen]
        seen |= set(wanted)
    with ThreadPoolExecutor(2) as pool:
        begun = {
            path: pool.submit(run_all, path, lines, tmp_path_factory.mktemp("docs"))
            for path, lines in jobs.items()
        }
        done = {path: future.result() for path, future in begun.items()}
    return {
        line if line != "python" else str(path): answer
        for path, answered in done.items()
        for line, answer in answered.items()
    }


RUNNERS = {"torchproof": {0, 1}, "python": {0}}
PRINTED = {
    "README.md": "GB102",
    "check.md": "GB102",
    "workloads.md": "torch.Size([2, 128, 578])",
}
LINES = sorted({line for path in DOCUMENTS for line in commands(path)})


@pytest.mark.parametrize("line", [ln for ln in LINES if program(ln) in RUNNERS])
def test_command_in_the_documents_runs(line: str, answers: dict[str, Done]) -> None:
    done = answers[line]
    assert done.returncode in RUNNERS[program(line)], done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", programs()[1], ids=lambda path: path.name)
def test_python_in_the_documents_runs(path: Path, answers: dict[str, Done]) -> None:
    done = answers[str(path)]
    assert done.returncode == 0, done.stderr
    assert PRINTED[path.name] in done.stdout


@pytest.mark.parametrize("line", [ln for ln in LINES if program(ln) not in RUNNERS])
def test_command_in_the_documents_exists(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)
    words = [word for word in arguments if not re.match(r"-|\w+=", word)]
    if name == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        assert words and set(words) <= set(targets)
    elif name == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert words == ["install", "."] or words == ["install", project["name"]]
    elif name == ".venv/bin/pytest":
        assert all((ROOT / word).exists() for word in words[:1])
    else:
        raise AssertionError(f"nothing here knows how to check: {line}")


def test_what_is_generated_is_current() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generate.documents().items()
        if path.read_text() != text
    ]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


def test_readme_shows_what_the_command_prints(answers: dict[str, Done]) -> None:
    line = shlex.join(["torchproof", *generate.COMMAND])
    shown = generate.output(answers[line].stdout)
    readme = (ROOT / "README.md").read_text()
    assert generate.lasting(shown) in generate.lasting(readme), "run `make docs`"


def test_check_page_names_every_flag_and_field() -> None:
    text = CHECK.read_text()
    names = FLAGS["check"] | {*RUN_FIELDS, *COUNT_FIELDS, *FINDING_FIELDS}
    names -= {"-h", "--help", "TARGET"}
    absent = sorted(n for n in names if not re.search(rf"`{re.escape(n)}\b", text))
    assert not absent


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not link.startswith("https://"):
            assert (path.parent / link).exists(), link
