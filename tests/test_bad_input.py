"""Input that torchproof refuses: one line on stderr, exit code 2.

Children of the commands are forked where torch is loaded (forked_commands.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_commands import forked

from torchproof.cli import flags
from torchproof.records import store

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
# Refused before a process is started, the first for want of a verb; tests/snapshots has
# the line of each.
PARENT = """

check
check missing.py:make
check missing.py
check notes.txt
check folder/notes:make
check not-a-module:make
check folder
check trace:nowhere
check trace:notes.txt
check trace:empty
check trace:odd_trace
check broken.py:none -- 1
check workload:gpt -- 1
check broken.py:none --size tiny
check workload:gpt --frobnicate
check workload:gpt --form json
bake cake
check exit_text.py --ranks 0
check exit_text.py --ranks -1
check folder --ranks 2
check exit_text.py --ranks 2 --wrap ddp
check exit_text.py --ranks 2 --effort static
check exit_text.py --ranks 2 --skip breaks
check exit_text.py --ranks 2 --launcher=--nproc-per-node=4
check exit_text.py --ranks 2 --launcher '
check exit_text.py --launcher=--nnodes=2
check broken.py:fine --wrap ddp
bench broken.py:fine --ranks 0
bench broken.py:fine --wrap ddp
bench exit_text.py --ranks 2
tune broken.py:fine --ranks 0
tune broken.py:fine --wrap ddp
tune exit_text.py --ranks 2
pack workload:gpt --for deploy --ranks 1
pack workload:gpt --for deploy --ranks -3
pack workload:gpt --for deploy --ranks 2 --artifact aoti
pack workload:gpt --for deploy --wrap tp
pack workload:gpt --for deploy --ranks 2 --wrap ddp
completion
completion bash --line torchproof
log add --expect speed>1
log --again
log plan
log add nothing
log plan x --expect speed
log plan x --expect speed>=fast
log plan x --expect brakes=0
log plan x --expect median_ms=3
log plan x --file broken.py
log plan x --file no/where.md
log --file .
log retrospective
check workload:gpt --effort huge
check workload:gpt --format xml
check workload:gpt --timeout -3
check workload:gpt --timeout soon
check workload:gpt --compile dynamic
check workload:gpt --skip brakes
check workload:gpt --select XY1
check workload:gpt --ignore GB9
check workload:gpt -o there.json
check workload:gpt -o no/where
check broken.py:fine --compile dynamic=maybe
check broken.py:fine --compile fullgraph=none
check broken.py:fine --compile disable=2
loadtest broken.py:fine
loadtest broken.py:fine --rate 0
loadtest broken.py:fine --rate inf
loadtest broken.py:fine --rate nan
loadtest broken.py:fine --rate 9 --train
loadtest broken.py:fine --rate 9 --size tiny
loadtest broken.py:fine --rate 9 --arrivals requests.txt
loadtest broken.py:fine --rate 9 --arrivals gamma
loadtest broken.py:fine --rate 9 --arrivals gamma:0
loadtest broken.py:fine --rate 9 --arrivals gamma:nan
loadtest broken.py:fine --arrivals requests.txt
loadtest broken.py:fine --arrivals nowhere
loadtest broken.py:fine --rate 9 --requests 0
loadtest broken.py:fine --rate 9 --duration 0
loadtest broken.py:fine --rate 9 --duration long
loadtest broken.py:fine --rate 1e6 --duration 60
loadtest broken.py:fine --rate 9 --workers 0
loadtest broken.py:fine --rate 9 --seed -1
loadtest broken.py:fine --rate 9 --batch-window 1s
loadtest broken.py:fine --rate 9 --max-batch 8
loadtest broken.py:fine --rate 9 --batch-window 1s --max-batch 1
loadtest broken.py:fine --rate 9 --batch-window 1s --max-batch 8
loadtest broken.py:fine --rate 9 --find-rate
loadtest broken.py:fine --rate 9 --find-rate --slo p99.9999=5ms
loadtest broken.py:fine --arrivals requests.txt --find-rate --slo p99=5ms
loadtest broken.py:fine --rate 9 --slo fast
loadtest broken.py:fine --rate 9 --slo p99=
loadtest broken.py:fine --rate 9 --slo p99=soon
loadtest broken.py:fine --rate 9 --slo p99=0ms
loadtest broken.py:fine --rate 9 --slo p99=1e400s
loadtest broken.py:fine --rate 9 --slo p100=1s
loadtest broken.py:fine --rate 9 --slo p0=1s
loadtest broken.py:fine --rate 9 --slo word:p99=1s
loadtest broken.py:fine --rate 9 --slo token:p99=1s
loadtest broken.py:fine --rate 9 --strategies ful
loadtest broken.py:fine --rate 9 --strategies eager,full,eager
loadtest broken.py:fine --rate 9 --strategies full:nowait
loadtest broken.py:fine --rate 9 --strategies compile:fast
loadtest broken.py:fine --rate 9 --strategies compile:full:regional
loadtest broken.py:fine --rate 9 --strategies graph
loadtest broken.py:fine --rate 9 --strategies recipe:nowhere.toml
loadtest broken.py:fine --rate 9 --strategies pack:nowhere
loadtest broken.py:fine --rate 9 --strategies full+graph:marks
loadtest broken.py:fine --rate 9 --strategies eager --as-written
loadtest broken.py:fine --rate 9 --price 2
loadtest workload:gpt --rate 9 --output-tokens 4 --price 0
loadtest workload:gpt --rate 9 --output-tokens 4 --temperature -1
loadtest workload:gpt --rate 9 --output-tokens 4 --queue-limit -1
loadtest workload:gpt --rate 9 --output-tokens 4 --workers 2
loadtest workload:gpt --rate 9 --output-tokens 4 --batch-window 1s --max-batch 4
loadtest workload:gpt --arrivals calls.txt --output-tokens 4
loadtest workload:gpt --rate 9 --prompt-tokens 5-4
loadtest workload:gpt --rate 9 --prompt-tokens 0-4
loadtest workload:gpt --rate 9 --prompt-tokens 1-2-3
loadtest workload:gpt --rate 9 --prompt-tokens 1-
loadtest workload:gpt --rate 9 --prompt-tokens 1.5
loadtest workload:gpt --rate 9 --prompt-tokens 1-9999999
rule GB999
show --clear
show --caches --clear some
show --caches --format md
show --caches --list
show 2020
show 2026
show broken_run.json
show newer.json
show no_id.json
show no_schema.json
show list.json
show nul.json
show cut_off.tar.gz
show cut_off.tar.gz --format html
pack broken.py:fine --for repro -o no/where/a.tar.gz
pack broken.py:fine --for deploy -o no/where/a.tar.gz
pack workload:gpt --for deploy --artifact aoti --train
show notes.txt
"""
# Refused by the process of the target. `check` gets -q: a slow machine adds lines.
CHILD = """
broken.py:nothing
broken.py:raises
broken.py:none
broken.py:no_calls
broken.py:bare_call
broken.py:call_exits
broken.py:fine --compile nonsense=1
no_import.py:make
broken.py:fails_in_eager
hook.py:make
workload:gpt --size huge
"""
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


@pytest.mark.parametrize(
    ("table", "options", "name"),
    [(PARENT, "", "refused"), (CHILD, "check -q ", "refused_by_the_child")],
    ids=["parent", "child"],
)
def test_refused_in_one_line_with_exit_code_2(
    table: str,
    options: str,
    name: str,
    folder: Path,
    run: Run,
    snapshot: Callable[[str, str], None],
) -> None:
    lines = []
    for command in table.splitlines()[1:]:
        code, stdout, stderr = run(f"{options}{command}")
        assert_one_line(code, stdout, stderr)
        lines.append(f"{command}\n    {stderr}")
    # Versions of argparse quote choices differently.
    text = "".join(lines).replace(str(folder), "FOLDER")
    snapshot(f"{name}.txt", text if name != "refused" else text.replace("'", ""))
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


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("YES", True), ("1", True), ("no", False), ("0", False)],
)
def test_values_of_compile_arguments(text: str, value: bool) -> None:
    found = flags.compile_arguments(f"dynamic={text},fullgraph= {text} ,mode=x")
    assert found == {"dynamic": value, "fullgraph": value, "mode": "x"}
    assert flags.compile_arguments("dynamic=None") == {"dynamic": None}
    assert flags.compile_arguments("dynamic=auto") == {"dynamic": None}


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
