"""Input that torchproof refuses: one line on stderr, exit code 2.

Commands that need a child run in stand-ins for real processes (forked_commands.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from forked_commands import torchproof

from torchproof.cli import flags, main
from torchproof.records import store
from torchproof.records.run import Run

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
# name: arguments, a pattern of the facts that the line names, in their order. Those of
# `check` get -q: a slow machine adds lines of progress.
PARENT = {
    "no target": ("check", r"TARGET.*--list"),
    "missing file": ("check missing.py:make", r"missing\.py$"),
    "missing script": ("check missing.py", r"'missing\.py'"),
    "no Python script": ("check notes.txt", r"notes\.txt .*Python"),
    "no Python file": ("check folder/notes:make", r"folder/notes .*Python"),
    "no module": ("check not-a-module:make", r"not-a-module.*module"),
    "folder": ("check folder", r"folder.*--effort static"),
    "unknown workload": ("check workload:nope", r"'nope'.* arrcoc, arrcoc-o"),
    "no trace": ("check trace:nowhere", r"'nowhere'.*TORCH_TRACE"),
    "trace is a file": ("check trace:notes.txt", r"'notes\.txt'.*TORCH_TRACE"),
    "empty trace": ("check trace:empty", r"trace.* empty\b"),
    "odd trace": ("check trace:odd_trace", r"trace.* odd_trace\b"),
    "factory arguments": ("check broken.py:none -- 1", r"broken\.py:none .* --$"),
    "workload arguments": ("check workload:gpt -- 1", r"workload:gpt .* --$"),
    "size of a factory": ("check broken.py:none --size tiny", r"--size\b"),
    "unknown flag": ("check workload:gpt --frobnicate", r" --frobnicate\b"),
    "short for a flag": ("check workload:gpt --form json", r" --form json\b"),
    "unknown verb": ("bake cake", r"'bake'.*check"),
    "no verb": ("", r"VERB"),
    "unknown effort": ("check workload:gpt --effort huge", r"--effort.*'huge'"),
    "unknown format": ("check workload:gpt --format xml", r"--format.*'xml'"),
    "bad timeout": ("check workload:gpt --timeout -3", r" --timeout"),
    "odd timeout": ("check workload:gpt --timeout soon", r" --timeout.*soon"),
    "bad compile": ("check workload:gpt --compile dynamic", r"dynamic.*KEY=VALUE"),
    "bad skip": ("check workload:gpt --skip brakes", r"'brakes'"),
    "bad select": ("check workload:gpt --select XY1", r"'XY1'"),
    "bad ignore": ("check workload:gpt --ignore GB9", r"'GB9'"),
    "output exists": ("check workload:gpt -o there.json", r"there\.json"),
    "output nowhere": ("check workload:gpt -o no/where", r"-o no/where"),
    "unknown rule": ("rule GB999", r"'GB999'"),
    "unknown run": ("show 2020", r"'2020'.*runs"),
    "ambiguous run": ("show 2026", r"'2026'.*\b2 runs"),
    "broken run": ("show broken_run.json", r"broken_run\.json.*JSON"),
    "newer run": ("show newer.json", r"newer\.json.*\b99\b.*\b1\b"),
    "text as a run": ("show notes.txt", r"notes\.txt.*JSON"),
}
CHILD = {
    "missing factory": ("broken.py:nothing", r"'nothing'.*\bf, "),
    "failing factory": (
        "broken.py:raises",
        r" raises .*ValueError: no weights in this folder \(at broken\.py:8\)$",
    ),
    "returns None": ("broken.py:none", r"\(fn, calls\).*NoneType"),
    "no calls": ("broken.py:no_calls", r"no_calls .*\bcalls\b"),
    "bare call": ("broken.py:bare_call", r"call 1 .*\bint\b.* tuple"),
    "call that exits": ("broken.py:call_exits", r"call 0 .*sys\.exit\(0\)"),
    "compile argument": (
        "broken.py:fine --compile nonsense=1",
        r"torch\.compile .*nonsense",
    ),
    "import error": ("no_import.py:make", r"ModuleNotFoundError.*'nowhere_at_all'"),
    "fails in eager": (
        "broken.py:fails_in_eager",
        r"eager.* call 1: ValueError: x is too large: 2 \(at broken\.py:\d+\)$",
    ),
    "before_call fails": ("hook.py:make", r"before_call .*call 1: KeyError"),
    "unknown size": ("workload:gpt --size huge", r"'huge'.* tiny, small"),
}
SCRIPTS = {
    "process that ends": ("broken.py:process_ends", r"os\._exit"),
    "script exits": ("exit3.py", r"code 3\b"),
    "script exits with text": ("exit_text.py", r"code 1: no data in \./data$"),
    "script is killed": ("killed.py", r"SIGKILL"),
    "script raises": ("raises.py", r"code 1: RuntimeError: out of luck$"),
}
PARENT |= {
    f"{key}={value}": (
        f"check broken.py:fine --compile {key}={value}",
        rf"{key}={value} .*true, yes, on, 1, false, no, off.*\b0\b{rest}$",
    )
    for key, value, rest in (
        ("dynamic", "maybe", ", auto or none"),
        ("fullgraph", "none", ""),
        ("disable", "2", ""),
    )
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


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, with commands that run in this process."""
    monkeypatch.chdir(folder)
    return folder


def assert_one_line(stderr: str, said: str) -> None:
    assert re.search(said, stderr), stderr
    assert stderr.startswith("torchproof")
    assert stderr.count("\n") == 1, stderr


def refused(arguments: str, said: str, folder: Path) -> str:
    """What is on stdout beside the one line on stderr."""
    done = torchproof(*arguments.split(), cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert_one_line(done.stderr, said)
    return done.stdout


@pytest.mark.parametrize("name", PARENT)
def test_refused_in_one_line_with_exit_code_2(
    name: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, said = PARENT[name]
    try:
        code: object = main(arguments.split())
    except SystemExit as end:
        code = end.code
    stdout, stderr = capsys.readouterr()
    assert (code, stdout) == (2, ""), stderr
    assert_one_line(stderr, said)
    assert (inside / "there.json").read_text() == FILES["there.json"]


@pytest.mark.parametrize("name", CHILD)
def test_refused_by_the_child_in_one_line(name: str, folder: Path) -> None:
    rest, said = CHILD[name]
    assert refused(f"check -q {rest}", said, folder) == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_run_of_a_failed_script_is_saved(name: str, folder: Path) -> None:
    script, said = SCRIPTS[name]
    assert refused(f"check -q {script}", said, folder)
    runs = [json.loads(p.read_text()) for p in folder.glob(".torchproof/runs/*/*.json")]
    [saved] = filter(None, runs)  # those that the folder came with are empty
    assert saved["target"] == script
    assert re.search(said, saved["error"])
    assert saved["parts"]["breaks"]["status"] == "failed"
    if script == "exit3.py":
        assert saved["exit_code"] == 3
    if script == "killed.py":
        assert saved["ending"] == "crashed"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, True) for word in ("true", "True", "YES", "on", "1")),
        *((word, False) for word in ("false", "False", "no", "Off", "0")),
        *((word, None) for word in ("None", "auto")),
    ],
)
def test_values_of_compile_arguments(text: str, value: bool | None) -> None:
    assert flags.compile_arguments(f"dynamic={text}") == {"dynamic": value}
    if value is not None:
        assert flags.compile_arguments(f"fullgraph= {text} ,mode=x") == {
            "fullgraph": value,
            "mode": "x",
        }


def test_verbose_shows_the_traceback_of_a_factory(folder: Path) -> None:
    done = torchproof("check", "-v", "broken.py:raises", cwd=folder)
    assert done.returncode == 2
    *above, last = done.stderr.splitlines()
    assert last.startswith("torchproof: error: the factory raises failed: ValueError")
    assert above[0] == "Traceback (most recent call last):"
    assert 'broken.py", line 8, in raises' in done.stderr
    assert "torchproof/targets" not in done.stderr


def test_defect_of_torchproof_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> Run:
        raise TypeError("a defect")

    monkeypatch.setattr(store, "load", broken)
    assert main(["compare", "a", "b"]) == 2
    assert "TypeError" in capsys.readouterr().err
