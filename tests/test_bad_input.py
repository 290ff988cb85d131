"""What torchproof is told to do and cannot: one line on stderr, exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_commands import torchproof

from torchproof.cli import main
from torchproof.records import store
from torchproof.records.run import Run

BROKEN = """
import sys

def f(x):
    return x

def raises():
    raise ValueError("no weights\\nin this folder")

def exits():
    sys.exit("not today")

def none():
    return None

def three():
    return f, [(1,)], {}

def number():
    return 7, [(1,)]

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

def calls_in_a_dict():
    return f, {"x": 1}

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
    "no_python.py": "def make(:\n",
    "exit3.py": "import sys; print('bye'); sys.exit(3)\n",
    "exit_text.py": "import sys; sys.exit('no data\\nin ./data')\n",
    "killed.py": "import os; os.kill(os.getpid(), 9)\n",
    "raises.py": "raise RuntimeError('out of luck')\n",
    "notes.txt": "not Python\n",
    "folder/notes": "not Python\n",
    "there.json": "{}\n",
    "odd_trace/trace.log": "V1115 10:00:00.000000 1 nothing] {broken\n\x00\xff\n",
    "newer.json": json.dumps({"schema": 99}),
    "broken_run.json": '{"schema": 1, "id": "x"',
}
# name: arguments, what the line says. Those of `check` get -q: a slow machine adds
# lines of progress.
PARENT = {
    "no target": ("check", "check needs a TARGET"),
    "missing file": ("check missing.py:make", "no file missing.py"),
    "missing script": ("check missing.py", "no target 'missing.py'"),
    "no Python script": ("check notes.txt", "notes.txt is no Python script"),
    "no Python file": ("check folder/notes:make", "folder/notes is no Python file"),
    "no module": ("check not-a-module:make", "neither a file nor a module name"),
    "folder": ("check folder", "--effort static"),
    "unknown workload": (
        "check workload:nope",
        "choose one of arrcoc, arrcoc-o",
    ),
    "no trace": ("check trace:nowhere", "no trace folder 'nowhere'"),
    "trace is a file": ("check trace:notes.txt", "no trace folder 'notes.txt'"),
    "empty trace": ("check trace:empty", "no compilation trace in empty"),
    "odd trace": ("check trace:odd_trace", "no compilation trace in odd_trace"),
    "factory arguments": ("check broken.py:none -- 1", "go to a script"),
    "workload arguments": ("check workload:gpt -- 1", "go to a script"),
    "size of a factory": ("check broken.py:none --size tiny", "--size is for workl"),
    "unknown flag": ("check workload:gpt --frobnicate", "unrecognized arguments"),
    "short for a flag": ("check workload:gpt --form json", "unrecognized arguments"),
    "unknown verb": ("bake cake", "invalid choice: 'bake'"),
    "no verb": ("", "required: VERB"),
    "unknown effort": ("check workload:gpt --effort huge", "invalid choice: 'huge'"),
    "unknown format": ("check workload:gpt --format xml", "invalid choice: 'xml'"),
    "bad timeout": ("check workload:gpt --timeout -3", "argument --timeout"),
    "odd timeout": ("check workload:gpt --timeout soon", "argument --timeout"),
    "bad compile": ("check workload:gpt --compile dynamic", "is not KEY=VALUE"),
    "bad skip": ("check workload:gpt --skip brakes", "no part 'brakes' to skip"),
    "bad select": ("check workload:gpt --select XY1", "no rule starts with 'XY1'"),
    "bad ignore": ("check workload:gpt --ignore GB9", "no rule starts with 'GB9'"),
    "output exists": ("check workload:gpt -o there.json", "there.json exists"),
    "output nowhere": ("check workload:gpt -o no/where", "is no folder to write in"),
    "unknown rule": ("rule GB999", "no rule 'GB999'"),
    "unknown run": ("show 2020", "no run '2020' in"),
    "ambiguous run": ("show 2026", "'2026' is the start of 2 runs"),
    "broken run": ("show broken_run.json", "broken_run.json is not the JSON of a run"),
    "newer run": ("show newer.json", "reads up to 1: install a newer torchproof"),
    "text as a run": ("show notes.txt", "notes.txt is not the JSON of a run"),
}
CHILD = {
    "missing factory": ("broken.py:nothing", "no factory 'nothing' (it defines f, "),
    "failing factory": (
        "broken.py:raises",
        "the factory raises failed: ValueError: no weights in this folder",
    ),
    "factory that exits": ("broken.py:exits", "exits failed: SystemExit: not today"),
    "returns None": ("broken.py:none", "must return (fn, calls), not NoneType"),
    "returns three": ("broken.py:three", "must return (fn, calls), not tuple"),
    "fn is a number": ("broken.py:number", "returned a int as fn, which cannot be"),
    "no calls": ("broken.py:no_calls", "returned no calls: there is nothing to run"),
    "calls in a dict": ("broken.py:calls_in_a_dict", "returned calls as dict"),
    "bare call": ("broken.py:bare_call", "call 1 is a int; it must be a tuple"),
    "call that exits": ("broken.py:call_exits", "call 0 ends the process: sys.exit(0)"),
    "compile argument": (
        "broken.py:fine --compile nonsense=1",
        "torch.compile rejects its arguments",
    ),
    "import error": ("no_import.py:make", "ModuleNotFoundError: No module named"),
    "syntax error": ("no_python.py:make", "failed: SyntaxError"),
    "no such module": ("nowhere.at_all:make", "No module named 'nowhere'"),
    "fails in eager": (
        "broken.py:fails_in_eager",
        "the target fails in eager, at call 1: ValueError: x is too large: 2",
    ),
    "before_call fails": ("hook.py:make", "before_call failed at call 1: KeyError"),
    "unknown size": ("workload:gpt --size huge", "choose one of tiny, small"),
}
SCRIPTS = {
    "process that ends": ("broken.py:process_ends", "the target ended its process"),
    "script exits": ("exit3.py", "the script ended with exit code 3"),
    "script exits with text": ("exit_text.py", "exit code 1: no data in ./data"),
    "script is killed": ("killed.py", "the target was killed by SIGKILL"),
    "script raises": ("raises.py", "exit code 1: RuntimeError: out of luck"),
}
CASES = PARENT | {
    name: (f"check -q {rest}", said) for name, (rest, said) in CHILD.items()
}


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


def refused(arguments: str, said: str, folder: Path) -> str:
    """What is on stdout beside the one line on stderr."""
    done = torchproof(*arguments.split(), cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("torchproof")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_exit_code_2(name: str, folder: Path) -> None:
    assert refused(*CASES[name], folder) == ""
    assert (folder / "there.json").read_text() == FILES["there.json"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_did_until_it_failed_is_saved(name: str, folder: Path) -> None:
    script, said = SCRIPTS[name]
    assert refused(f"check -q {script}", said, folder)
    runs = [json.loads(p.read_text()) for p in folder.glob(".torchproof/runs/*/*.json")]
    [saved] = filter(None, runs)  # those that the folder came with are empty
    assert saved["target"] == script
    assert said in saved["error"]
    assert saved["parts"]["breaks"]["status"] == "failed"
    if script == "exit3.py":
        assert saved["exit_code"] == 3
    if script == "killed.py":
        assert saved["ending"] == "crashed"


def test_a_crash_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> Run:
        raise TypeError("a defect")

    monkeypatch.setattr(store, "load", broken)
    assert main(["compare", "a", "b"]) == 2
    assert "TypeError: a defect" in capsys.readouterr().err
