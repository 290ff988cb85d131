"""docs/reference/coverage.md: each answer is executed and says what its row says."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import forked_commands
import pytest
import test_docs
from commands import Done

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "docs"))
import coverage_page  # noqa: E402

GUIDE = coverage_page.read()


def write_files(folder: Path) -> None:
    test_docs.write_files(folder)
    test_docs.write_runs(folder)
    for name, text in GUIDE.files.items():
        (folder / name).write_text(text)


def executed(answer: coverage_page.Answer, folder: Path) -> str:
    """All that it prints; a crash is exit code 2."""
    if answer.program:
        steps = [forked_commands.python(answer.program, cwd=folder)]
    else:
        steps = [RUN[answer.when](line, folder) for line in answer.to_run()]
    for done in steps:
        assert done.returncode in {0, 1}, f"{done.args}: {done.stderr}"
    return "\n".join(done.stdout for done in steps)


def on_gpu(line: str, folder: Path) -> Done:
    """Where the package may not be installed."""
    return commands.torchproof(*shlex.split(line)[1:], cwd=folder)


RUN: dict[str, Callable[[str, Path], Done]] = {
    "test": test_docs.run_line,
    "slow": lambda line, folder: test_docs.in_shell(line, folder, 1200),
    "gpu": on_gpu,
}


def assert_says_what_its_rows_say(name: str, folder: Path) -> None:
    write_files(folder)
    said = executed(GUIDE.answers[name], folder)
    rows = [row for row in GUIDE.rows if row.answer == name]
    absent = [row for row in rows if not re.search(row.seen, said)]
    assert not absent, f"{[(row.named, row.seen) for row in absent]}\n{said}"


def named(when: str) -> list[str]:
    return [answer.name for answer in GUIDE.answers.values() if answer.when == when]


# Several checks, a wait, or what other tests show as well.
LONG = {"resolved", "hang", "annotations", "log", "skip", "skip-breaks", "recompiles"}
LONG |= {"dynamic", "quick", "partial", "report"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name in named("test")
    ],
)
def test_answer_says_what_its_rows_say(name: str, tmp_path: Path) -> None:
    assert_says_what_its_rows_say(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", named("slow"))
def test_measured_answer_says_what_its_rows_say(name: str, tmp_path: Path) -> None:
    assert_says_what_its_rows_say(name, tmp_path)


def test_every_row_has_an_answer_or_says_why_not() -> None:
    assert GUIDE.rows
    for row in GUIDE.rows:
        if row.answer:
            assert row.answer in GUIDE.answers, row.named
            assert row.seen, f"{row.named}: nothing to see of its answer"
        else:
            assert row.note.startswith("not covered"), row.named


def test_every_answer_is_executed_somewhere() -> None:
    """Those that need CUDA by tests/gpu/test_coverage_on_gpu.py."""
    assert {answer.when for answer in GUIDE.answers.values()} == {"test", "slow", "gpu"}
    for answer in GUIDE.answers.values():
        assert bool(answer.lines) != bool(answer.program), answer.name


def test_every_answer_answers_something() -> None:
    assert set(GUIDE.answers) == {row.answer for row in GUIDE.rows if row.answer}


def test_nothing_is_named_twice_in_one_table() -> None:
    for system in GUIDE.systems:
        for table in system.tables:
            named = [row.named for row in table.rows]
            assert len(named) == len(set(named)), table.title
