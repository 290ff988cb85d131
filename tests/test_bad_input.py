"""Input that torchproof refuses: one line on stderr, exit code 2.

Children of the commands are forked where torch is loaded (forked_commands.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_commands import forked

from torchproof.records import store

SNAPSHOTS = Path(__file__).parent / "snapshots"

BROKEN = """
import sys

def f(x):
    return x

def raises():
    raise ValueError("no weights\\nin this folder")

def none():
    return None

def fine():
    return f, [(1,)]


def call_exits():
    import sys
    return (lambda: sys.exit(0)), [()]


def process_ends():
    import os
    return (lambda: os._exit(0)), [()]


def no_calls():
    return f, []

def bare_call():
    return f, [(1,), 2]

def fails_in_eager():
    def strict(x):
        if x > 1:
            raise ValueError("x is too large:\\n2")
        return x
    return strict, [(1,), (2,)]
"""
HOOK = """
def make():
    return abs, [(1,), (2,)]

def before_call(fn, index):
    if index == 1:
        raise KeyError("schedule")
"""
FILES = {
    "broken.py": BROKEN,
    "hook.py": HOOK,
    "no_import.py": "import nowhere_at_all\n",
    "exit_text.py": "import sys; sys.exit('no data\\nin ./data')\n",
    "killed.py": "import os; os.kill(os.getpid(), 9)\n",
    "notes.txt": "not Python\n",
    "requests.txt": "0,0\nlater,0\n",
    "calls.txt": "0.5\n0.9,1\n",
    "folder/notes": "not Python\n",
    "there.json": "{}\n",
    "odd_trace/trace.log": "V1115 10:00:00.000000 1 nothing] {broken\n\x00\xff\n",
    "newer.json": json.dumps({"schema": 99}),
    "broken_run.json": '{"schema": 1, "id": "x"',
    "no_id.json": '{"schema": 1}',
    "no_schema.json": "{}",
    "list.json": "[]",
    "nul.json": "\x00",
    "cut_off.tar.gz": "\x1f\x8b\x08",
}
# tests/snapshots has their commands, each with the line of its refusal. Those of the
# first file are refused before a process is started, the first for want of a verb, and
# those of the second by the process of the target. -q: a slow machine adds lines.
REFUSED = {"refused.txt": "", "refused_by_the_child.txt": "check -q "}
# Its run is saved.
SCRIPTS = ("broken.py:process_ends", "exit_text.py", "killed.py")


Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="latin-1")
    (tmp_path / "empty").mkdir()
    for name in ("20260101-0000-a", "20260101-0000-b"):
        (tmp_path / ".torchproof/runs" / name).mkdir(parents=True)
        (tmp_path / ".torchproof/runs" / name / "run.json").write_text("{}")
    return tmp_path


@pytest.fixture
def run(folder: Path, answer: Callable[..., tuple[int, str, str]]) -> Iterator[Run]:
    """Exit code, stdout and stderr of a command in that folder."""
    with forked():
        yield lambda command: answer(*command.split())


def assert_one_line(code: object, stdout: str, stderr: str) -> None:
    assert (code, stdout) == (2, ""), stderr
    assert stderr.startswith("torchproof") and stderr.count("\n") == 1, stderr


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_with_exit_code_2(
    name: str, folder: Path, run: Run, snapshot: Callable[[str, str], None]
) -> None:
    lines = []
    for command in (SNAPSHOTS / name).read_text().splitlines()[::2]:
        code, stdout, stderr = run(f"{REFUSED[name]}{command}")
        assert_one_line(code, stdout, stderr)
        # Versions of argparse quote choices differently.
        said = stderr.replace(str(folder), "FOLDER").replace("'", "")
        lines.append(f"{command}\n    {said}")
    snapshot(name, "".join(lines))
    assert Path("there.json").read_text() == FILES["there.json"]


def test_run_of_a_failed_script_is_saved(
    folder: Path, run: Run, snapshot: Callable[[str, str], None]
) -> None:
    lines = []
    for script in SCRIPTS:
        code, stdout, stderr = run(f"check -q {script}")
        assert stdout
        assert_one_line(code, "", stderr)
        paths = folder.glob(".torchproof/runs/*/*.json")
        saved_runs = [json.loads(path.read_text()) for path in paths]
        [saved] = [each for each in saved_runs if each.get("target") == script]
        facts = [saved["parts"]["breaks"]["status"], saved["ending"]]
        facts += [saved["exit_code"], saved["error"]]
        lines.append(f"{script} {facts}\n    {stderr}")
    snapshot("failed_scripts.txt", "".join(lines))


def test_verbose_shows_the_traceback_of_a_factory(run: Run) -> None:
    code, _, stderr = run("check -v broken.py:raises")
    assert code == 2
    *above, last = stderr.splitlines()
    assert last.startswith("torchproof: error: the factory raises failed: ValueError")
    assert above[0] == "Traceback (most recent call last):"
    assert 'broken.py", line 8, in raises' in stderr
    assert "torchproof/targets" not in stderr


def test_defect_of_torchproof_is_exit_code_2(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "load", lambda name: 1 / 0)
    code, _, stderr = run("compare a b")
    assert code == 2 and "ZeroDivisionError" in stderr
