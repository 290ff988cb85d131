"""`torchproof fix` as a user runs it: a search, what it writes, and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from commands import PROGRAM
from fix_runs import edit, run_of, setting
from forked_commands import Done, torchproof

from torchproof.cli import main
from torchproof.records import Setting, installed_torch, store

MODEL = """\
import torch


def step(x):
    if x.sum() > 0:  # positive
        y = x * 2
    else:
        y = x - 1
    return y


def make():
    return step, [(torch.ones(4),), (-torch.ones(4),)]
"""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A search that shows a fix, and writes nothing."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "model.py").write_text(MODEL)
    command = ("fix", "model.py:make", "--effort", "quick", "--format", "json")
    return folder, torchproof(*command, cwd=folder)


def test_a_search_shows_verified_fixes_and_writes_nothing(
    searched: tuple[Path, Done],
) -> None:
    folder, done = searched
    assert done.returncode == 1, done.stderr
    run = json.loads(done.stdout)
    [fix] = [fix for fix in run["fixes"] if fix["status"] == "verified"]
    assert "torch.where" in fix["diff"] and fix["receipt"]["breaks"] == [1, 0]
    assert (folder / "model.py").read_text() == MODEL


def test_a_saved_run_is_written_without_another_proof(
    searched: tuple[Path, Done],
) -> None:
    folder, done = searched
    run = json.loads(done.stdout)["id"]
    written = torchproof("fix", run, "--write", cwd=folder)
    assert written.returncode == 0, written.stderr
    assert "written to model.py" in written.stdout
    text = (folder / "model.py").read_text()
    assert text.startswith("import torch\n\n\ndef step(x):\n")
    assert "torch.where(x.sum() > 0, x * 2, x - 1)" in text
    again = torchproof("fix", run, "--write", cwd=folder)
    assert again.returncode == 2
    assert "model.py has changed since it was read" in again.stderr
    assert (folder / "model.py").read_text() == text


@pytest.mark.slow
def test_ctrl_c_saves_what_exists_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    command = [*PROGRAM, "fix", "model.py:make", "--effort", "quick", "--write"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The second proof writes this file as it begins.
    while not list(tmp_path.glob(".torchproof/runs/.saving-*/entries-1.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert file.read_text() == MODEL
    [folder] = store.listing(tmp_path / ".torchproof" / "runs")
    run = store.read(folder / "run.json")
    assert run.ending == "interrupted" and run.findings
    assert "Incomplete: the run ended early (interrupted)" in out
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"model.py", ".torchproof", "__pycache__"}


@pytest.mark.slow
def test_a_patch_of_a_library_is_proved_and_installed(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "fakelib" / "__init__.py"
    library.parent.mkdir(parents=True)
    library.write_text(MODEL)
    (tmp_path / "user.py").write_text(
        "import sys\n\nsys.path.insert(0, 'site-packages')\n"
        "from fakelib import make, step\n"
    )
    command = ("fix", "user.py:make", "--effort", "quick", "--patch", "patches")
    done = torchproof(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert library.read_text() == MODEL
    (tmp_path / "patched.py").write_text(
        "import torchproof\n\nprint(torchproof.apply_patches('patches'))\n"
        "from user import make\n"
    )
    check = torchproof("check", "patched.py:make", "--effort", "quick", cwd=tmp_path)
    assert check.returncode == 0 and "breaks 0" in check.stdout


# -- bad input -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "nb.ipynb").write_text("{}")
    for name in ("taken", "source", "trace"):
        (tmp_path / name).mkdir()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / "source" / "a.py").touch()
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr of a command that fails."""
    try:
        code = main(["fix", *words])
    except SystemExit as error:  # from the parser
        code = error.code
    captured = capsys.readouterr()
    assert code == 2, captured
    [line] = [e for e in captured.err.splitlines() if e.startswith("torchproof")]
    return line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train.py", "--train"], "--train is for workloads and factories"),
        (["trace:trace"], "cannot be run"),
        (["source"], "cannot be run"),
        (["nb.ipynb:make"], "is in a notebook"),
        (["missing.py:make"], "no file missing.py"),
        (["model.py:make", "--patch", "taken"], "taken exists"),
        (["model.py:make", "--patch", "no/where"], "is not a writable directory"),
        (["20990101", "--write"], "no target"),
    ],
)
def test_what_cannot_be_fixed_is_said_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert line in answer(capsys, *words)
    assert not (folder / ".torchproof").exists()


def test_a_target_that_fails_in_eager_is_one_line(folder: Path) -> None:
    (folder / "eager.py").write_text(
        "import torch\n\n\ndef make():\n"
        "    return (lambda x: x @ torch.ones(3)), [(torch.ones(2),)]\n"
    )
    done = torchproof("fix", "eager.py:make", "-q", cwd=folder)
    assert done.returncode == 2 and not done.stdout
    [error] = [e for e in done.stderr.splitlines() if e.startswith("torchproof")]
    assert "the target fails in eager, at call 0: RuntimeError" in error


def test_a_read_only_file_is_one_line_and_the_run_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "model.py"
    torch = {"torch": installed_torch()}
    after = MODEL.replace("x * 2", "x + x")
    saved = store.save(run_of(edit(file, after), environment=torch))
    file.chmod(0o444)
    line = answer(capsys, saved.id, "--write")
    assert line == "torchproof: error: model.py is read-only: nothing was written"
    assert file.read_text() == MODEL and len(store.listing()) == 2


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"verb": "check"}, "is a run of check"),
        ({"ending": "interrupted"}, "is incomplete"),
        ({"environment": {"torch": "1.0"}}, "was proved with torch 1.0"),
    ],
)
def test_saved_runs_that_are_not_written(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    line: str,
) -> None:
    flag = setting(Setting("dynamo.capture_scalar_outputs", True))
    saved = store.save(run_of(flag, **changes))
    assert line in answer(capsys, saved.id, "--write")
    assert "add --write or --patch DIR" in answer(capsys, saved.id)
    assert not (folder / "torchproof.toml").exists()
