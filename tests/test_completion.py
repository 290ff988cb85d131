"""Shell completion: what is offered, and real shells in which Tab is pressed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pexpect
import pytest
from command_line import FLAGS

from torchproof.cli import completion
from torchproof.cli.commands import COMMANDS, SHELLS
from torchproof.records import store
from torchproof.records.run import Run

ROOT = Path(__file__).resolve().parent.parent
MODEL = """
def make(): ...
def _hidden(): ...
class Net:
    def forward(self): ...
"""
# What Tab makes of each line: the words that the program gets.
TYPED = {
    "torchproof chec\t": "check",
    "torchproof check --format=sar\t": "check --format=sarif",
    "torchproof check workload:nanovlm-o\t": "check workload:nanovlm-original",
    "torchproof check --compile a=b sub\tinn\t": "check --compile a=b sub/inner.py",
}
FEW = ("torchproof check --format=sar\t", "torchproof check workload:nanovlm-o\t")
# Answers with its words, unless it is asked for completions.
PROGRAM = """#!{python}
import sys
sys.path.insert(0, {source!r})
if sys.argv[1:2] == ["completion"]:
    from torchproof.cli import main
    code = main()
    sys.exit(3 if "torch" in sys.modules else code)
print("<" + "got:" + " ".join(sys.argv[1:]) + ">")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a model, a script in a folder and a saved run."""
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "model.py").write_text(MODEL)
    (work / "sub" / "inner.py").write_text("")
    (work / "a b.py").write_text("")
    (work / "notes.txt").write_text("")
    monkeypatch.chdir(work)
    store.save(Run("20260102-0304-a", "a.py", "full", {}, {}))
    return work


def offered(line: str) -> set[str]:
    answer = completion.complete(line)
    return {row.partition("\t")[0] for row in answer.splitlines()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torchproof be", {"bench"}),
        ("torchproof --v", {"--version"}),
        ("torchproof bench --str", {"--strategies"}),
        ("torchproof check --fail-on ", {"high", "medium", "low", "never"}),
        ("torchproof check --fail-on=l", {"--fail-on=low"}),
        ("torchproof check model.py:", {"model.py:make"}),
        ("torchproof check a", {"a b.py"}),
        ("torchproof check 'a ", {"a b.py"}),
        ("torchproof check a\\ ", {"a b.py"}),
        ("torchproof check n", set()),
        ("torchproof check --baseline 2", {"20260102-0304-a"}),
        ("torchproof compare 20260102-0304-a 2", {"20260102-0304-a"}),
        ("torchproof compare a.json b.json ", set()),
        ("torchproof check model.py -- n", {"notes.txt"}),
        ("torchproof pack 2", {"20260102-0304-a"}),
        ("torchproof fix model.py --patch ", {"sub/"}),
        ("torchproof rule GB101x", set()),
        ("torchproof check x --select GB101,RK11", {"GB101,RK110"}),
        ("torchproof completion ", set(SHELLS)),
        ("torchproof show 2026", {"20260102-0304-a"}),
        ("torchproof no-such-verb ", set(offered("torchproof "))),
        ("torchproof check no/such/folder/", set()),
        ("torchproof check no_file.py:", set()),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_offered(line: str, words: set[str]) -> None:
    assert offered(line) == words


def test_every_verb_and_flag_is_offered() -> None:
    """From the commands: a new verb or flag needs nothing else."""
    assert offered("torchproof ") == set(COMMANDS)
    for verb in COMMANDS:
        flags = {flag for flag in FLAGS[verb] if flag.startswith("-")}
        assert offered(f"torchproof {verb} -") == flags


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "torchproof"
    path.parent.mkdir()
    source = str(ROOT / "src")
    path.write_text(PROGRAM.format(python=sys.executable, source=source))
    path.chmod(0o755)
    return path


def shell(name: str) -> str:
    """The shell, or a skipped test; SHELLS_REQUIRED makes a missing one a failure."""
    path = shutil.which(name)
    if path is None:
        assert "SHELLS_REQUIRED" not in os.environ, f"{name} is not installed"
        pytest.skip(f"{name} is not installed: scripts/shells installs it")
    return path


STARTED = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
LOADED = {
    "bash": 'eval "$(torchproof completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(torchproof completion zsh)"',
    "fish": "torchproof completion fish | source",
}


@pytest.mark.parametrize("name", SHELLS)
def test_tab_in_a_real_shell(name: str, folder: Path, program: Path) -> None:
    """All lines in bash; those with signs that shells treat differently in all."""
    variables = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "TERM": "dumb" if name == "bash" else "xterm",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "LANG": "C.UTF-8",
    }
    session = pexpect.spawn(
        *(shell(name), STARTED[name]),
        cwd=str(folder),
        encoding="utf-8",
        env=variables,
        timeout=60,
    )
    with contextlib.closing(session):
        session.sendline(LOADED[name])
        lines = TYPED if name == "bash" else FEW
        for typed in ("torchproof loaded", *lines):
            session.sendline(typed)
            session.expect("<got:(.*?)>")
            assert session.match[1] == TYPED.get(typed, "loaded")
