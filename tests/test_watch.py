"""`check --watch`: real saves, real interrupts, and what an edit changed."""

from __future__ import annotations

import os
import shutil
import signal
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import check_runs
import forked_commands
import pytest
from commands import torchproof
from forked_children import forked
from watched_program import Watching, alive, wait_until, watching

from torchproof import api, report
from torchproof.checking import history
from torchproof.cli import watched_files
from torchproof.cli.watched_files import WatchedFiles, syntax_error
from torchproof.records import store
from torchproof.records.run import Finding, Run

MODEL = """
import torch
from layers import scaled


class Net(torch.nn.Module):
    def forward(self, x):
        return scaled(x) + 1


def make():
    return Net(), [(torch.ones(4),)]
"""
LAYERS = """
def scaled(x):
    if x.sum() > 0:
        x = x * 2
    return x
"""
SLEEPER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
open("asleep", "a").write("x")
time.sleep(99)
"""


SLOW = pytest.mark.slow


def saved(path: Path, text: str) -> None:
    """As an editor that writes another file and renames it."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text)
    os.replace(beside, path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "other.py").write_text("a = 1\n")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


# -- the whole command -----------------------------------------------------------------


@pytest.mark.parametrize("terminal", [pytest.param(False, marks=SLOW), True])
def test_a_save_is_checked_and_what_changed_is_printed(
    model: Path, terminal: bool
) -> None:
    static = ("model.py:make", "--effort", "static")
    with watching(model, *static, terminal=terminal) as watch:
        watch.idle(1)
        assert "layers.py:3:8  GB102" in watch.out.replace("\x1b[33m", "")
        assert watch.err.count("watching 2 files; Ctrl-C ends") == 1
        (model / "other.py").write_text("a = 2\n")
        saved(model / "layers.py", LAYERS.replace("if x.sum() > 0", "if (x.sum("))
        watch.until(1, "; waiting for the next save")
        saved(model / "layers.py", LAYERS.replace("x.sum() > 0", "x.ndim > 0"))
        watch.idle(2)
        saved(model / "layers.py", LAYERS.replace("x = x", "print(x.item()); x = x"))
        watch.idle(3)
        assert watch.interrupt() == 130
        if watch.terminal is not None:  # it is left as it was
            assert termios.tcgetattr(watch.terminal) == watch.modes
            assert "\x1b[?" not in watch.out and "Traceback" not in watch.out
    _assert_said(watch)
    if watch.terminal is None:
        assert "\x1b" not in watch.out + watch.err and "\r" not in watch.err
    assert not alive(model)
    assert len(store.listing(model / store.RUNS)) == 3


def _assert_said(watch: Watching) -> None:
    lines = [line.rstrip() for line in watch.err.splitlines()]
    (broken,) = (line for line in lines if "waiting for the next save" in line)
    assert broken.startswith("layers.py:3: SyntaxError: ")
    assert sum(line.endswith("layers.py saved") for line in lines) == 2
    assert "other.py" not in watch.err
    said = [line.strip() for line in watch.out.splitlines()]
    assert said.count("Resolved:") == 1 and said.count("New:") == 1
    assert said.index("Resolved:") < said.index("New:")
    (whole,) = {line for line in said if line.startswith("No findings")}
    assert whole.endswith(" 1 resolved")
    (last,) = {line for line in said if line.startswith("3 findings")}
    assert last.endswith(" 3 new")


def test_a_save_cancels_the_check_that_runs(tmp_path: Path) -> None:
    script, asleep = tmp_path / "script.py", tmp_path / "asleep"
    script.write_text(SLEEPER)
    (temporary := tmp_path / "temporary").mkdir()
    variables = {"TMPDIR": str(temporary)}
    command = ("script.py", "--effort", "quick")
    with watching(tmp_path, *command, variables=variables) as watch:
        wait_until(asleep.exists, "no check began")
        first = {each.pid for each in alive(tmp_path)}
        saved(script, SLEEPER + "\n")
        wait_until(lambda: asleep.read_text() == "xx", "no check began anew")
        left = {each.pid for each in alive(tmp_path)} & first
        assert left == {watch.process.pid}
        assert not store.listing(tmp_path / store.RUNS)
        saved(script, "print('short')\n")
        watch.idle(1)
        assert not list(temporary.iterdir())
        assert watch.err.count("script.py saved during the check") == 2
        saved(script, SLEEPER)
        wait_until(lambda: asleep.read_text() == "xxx", "no third check")
        assert watch.interrupt() == 130
    assert not alive(tmp_path)
    (whole, cut) = [store.read(f / "run.json") for f in _runs(tmp_path)]
    assert (whole.ending, cut.ending) == ("finished", "interrupted")
    assert f"torchproof show {cut.id}" in watch.err
    assert "--watch" not in whole.command


def _runs(folder: Path) -> list[Path]:
    found = store.listing(folder / store.RUNS)
    return sorted(found, key=lambda path: (path / "run.json").stat().st_mtime)


@pytest.mark.slow
def test_nothing_outlives_a_watch_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLEEPER)
    with watching(tmp_path, "script.py", "--effort", "quick") as watch:
        wait_until((tmp_path / "asleep").exists, "no check began")
        watch.process.send_signal(signal.SIGKILL)
        watch.process.wait()
        wait_until(lambda: not alive(tmp_path), "something is left")


@pytest.mark.slow
def test_an_edit_that_keeps_size_and_time_is_not_taken_from_a_cache(
    model: Path,
) -> None:
    """Python's own cache of bytecode compares the size, and the time in seconds."""
    time_s = (1.7e9, 1.7e9)
    os.utime(model / "layers.py", time_s)
    with watching(model, "model.py:make", "--effort", "quick") as watch:
        watch.idle(1)
        assert "layers.py:3:8  GB102 high" in watch.out
        edited = LAYERS.replace("x.sum() > 0", "x.ndim >= 0")
        (beside := model / "beside").write_text(edited)
        os.utime(beside, time_s)
        os.replace(beside, model / "layers.py")
        watch.idle(2)
        assert len(edited) == len(LAYERS)
        assert " 1 resolved" in watch.out and "\nNew:" not in watch.out
        assert watch.interrupt() == 130


@pytest.mark.slow
def test_a_module_that_is_missing_is_waited_for(model: Path) -> None:
    (model / "layers.py").unlink()
    with watching(model, "model.py:make", "--effort", "quick") as watch:
        watch.idle(1)
        assert "torchproof: error: importing model.py failed" in watch.err
        saved(model / "layers.py", LAYERS)
        watch.idle(2)
        assert "GB102 high" in watch.out
        (model / "model.py").unlink()
        watch.until(1, "torchproof: error: no file model.py")
        saved(model / "model.py", MODEL)
        watch.idle(4)
        assert watch.interrupt() == 130
    assert not alive(model)


WRITER = """
import os, torch
with open("written.py", "w") as file:
    file.write(f"number = {os.getpid()}\\n")
import written
print("ran")
"""


@pytest.mark.slow
def test_a_file_that_every_check_writes_does_not_begin_another(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WRITER)
    (tmp_path / "written.py").write_text("number = 0\n")
    with watching(tmp_path, "script.py", "--effort", "quick") as watch:
        said = "written.py changed during each of the last 3 checks"
        watch.until(1, said)
        checks = watch.err.count("saved")
        assert checks <= 3
        time.sleep(2)
        assert watch.err.count("saved") == checks
        saved(tmp_path / "script.py", WRITER + "\n")
        watch.until(2, said)
        saved(tmp_path / "written.py", "number = 1\n")
        watch.until(3, said)
        assert watch.interrupt() == 130


@pytest.mark.slow
def test_runs_that_cannot_be_kept_do_not_end_a_watch(model: Path) -> None:
    with watching(model, "model.py:make", "--effort", "static", "--no-source") as watch:
        watch.idle(1)
        shutil.rmtree(model / store.RUNS)
        saved(model / "layers.py", LAYERS.replace("x.sum() > 0", "x.ndim > 0"))
        watch.idle(2)
        assert " 1 resolved" in watch.out
        shutil.rmtree(model / ".torchproof")
        (model / ".torchproof").touch()
        saved(model / "layers.py", LAYERS)
        watch.idle(3)
        assert "torchproof: error: " in watch.err and "Traceback" not in watch.err
        (model / ".torchproof").unlink()
        saved(model / "layers.py", LAYERS + "\n")
        watch.idle(4)
        assert "GB102" in watch.out.partition("New:")[2]
        assert "if x.sum() > 0:" not in watch.out
        assert watch.interrupt() == 130


FAILING = """
import torch


def step(x):
    print(x)
    return x + 1


torch.compile(step)(torch.ones(3))
"""


@pytest.mark.slow
def test_a_check_that_fails_shows_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FAILING)
    with watching(tmp_path, "script.py", "--effort", "quick") as watch:
        watch.idle(1)
        saved(tmp_path / "script.py", FAILING + "raise SystemExit(3)\n")
        watch.idle(2)
        assert watch.out.count("GB104 high") == 2 and "Resolved" not in watch.out
        assert "torchproof: error: " in watch.err
        saved(tmp_path / "script.py", FAILING.replace("print(x)", "pass"))
        watch.idle(3)
        assert " 1 resolved" in watch.out
        assert watch.interrupt() == 130


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("workload:gpt", "workload:gpt has no source file of yours"),
        ("trace:.", "trace:. has no source file of yours"),
        ("live:Net", "object of a Python process"),
        ("model.py:make --format json", "leave out --format json"),
        ("model.py:make -o file", "-o is for a single check"),
        ("model.py:make --trace file", "--trace is for a single check"),
        ("model.py:make --baseline run", "--baseline is for a single check"),
        ("nothing.py", "no target 'nothing.py'"),
    ],
)
def test_what_cannot_be_watched_is_one_line(model: Path, line: str, said: str) -> None:
    done = forked_commands.torchproof("check", "--watch", *line.split(), cwd=model)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_mistake_that_no_save_corrects_ends_it(model: Path) -> None:
    command = ("check", "model.py:make", "--effort", "static", "--watch")
    done = torchproof(*command, "--select", "XY", cwd=model)
    assert done.returncode == 2 and done.stdout == ""
    assert "'XY'" in done.stderr and done.stderr.count("\n") == 1


# -- the files -------------------------------------------------------------------------


class Clock:
    """Time that passes only while the watcher sleeps; `plan` are acts by their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.plan: list[tuple[float, Callable[[], Any]]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time() + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 60, "nothing was saved"
        while self.plan and self.plan[0][0] <= self.now:
            self.plan.pop(0)[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(watched_files, "time", clock)
    yield clock
    assert not clock.plan


def watched(*files: Path) -> WatchedFiles:
    made = WatchedFiles()
    made.begin(map(str, files))
    return made


def test_saves_in_short_order_are_one(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a.py"
    file.write_text("a = 0")
    watch = watched(file)
    clock.plan = [
        (1 + 0.15 * n, lambda n=n: file.write_text(f"a = {n}"))  # type: ignore[misc]
        for n in range(1, 6)
    ]
    assert watch.wait() == [str(file)]
    assert 1.75 + 0.2 <= clock.now < 2.5 and file.read_text() == "a = 5"
    watch.begin([str(file)])
    assert watch.changed() == []


def test_content_that_is_the_same_is_no_save(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a.py"
    file.write_text("a = 0")
    watch = watched(file)
    os.utime(file)
    saved(file, "a = 0")
    assert watch.changed() == []
    clock.plan = [(1.0, lambda: file.write_text("a = 1"))]
    clock.plan += [(1.15, lambda: file.write_text("a = 0"))]
    clock.plan += [(9.0, lambda: file.write_text("a = 2"))]
    watch.wait()
    assert clock.now > 9


def test_an_edit_that_keeps_size_and_time_is_a_save(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("a = 0")
    long_ago = (10**18, 10**18)
    os.utime(file, ns=long_ago)
    watch = watched(file)
    file.write_text("a = 1")
    os.utime(file, ns=long_ago)
    assert watch.changed() == [str(file)]


def test_a_file_may_be_missing_for_a_moment(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "a.py"
    file.write_text("a = 0")
    watch = watched(file)
    clock.plan = [(1.0, file.unlink), (1.6, lambda: file.write_text("a = 0"))]
    clock.plan += [(5.0, file.unlink), (5.6, lambda: file.write_text("a = 1"))]
    assert watch.wait() == [str(file)]
    assert clock.now > 5.6  # the first time, the same file came back
    watch.begin([str(file)])
    clock.plan = [(clock.now + 1, file.unlink)]
    assert watch.wait() == [str(file)]  # deleted


def test_a_new_file_of_a_folder_is_a_save(tmp_path: Path) -> None:
    target = api.parse(str(tmp_path))
    (tmp_path / "a.py").write_text("a = 0")
    watch = WatchedFiles(lambda: map(str, api.files_of(target)))
    watch.begin(())
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "b.py").write_text("b = 0")
    (tmp_path / "notes.txt").write_text("b")
    assert watch.changed() == [] and len(watch) == 1
    (tmp_path / "b.py").write_text("b = 0")
    assert watch.changed() == [str(tmp_path / "b.py")]


def test_other_files_can_be_watched_from_now_on(tmp_path: Path) -> None:
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("a = 0")
    b.write_text("b = 0")
    watch = watched(a)
    a.write_text("a = 1")
    watch.watch([str(a), str(b)])
    assert watch.changed() == [str(a)]  # the save before is not forgotten
    b.write_text("b = 1")
    assert watch.changed() == [str(a), str(b)]
    watch.watch([str(b)])
    assert watch.changed() == [str(b)]
    watch.accept([str(b)])
    assert watch.changed() == []
    b.write_text("b = 2")
    assert watch.changed() == [str(b)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a = (\n", "a.py:1: SyntaxError: '(' was never closed"),
        (b"if a:\nb", "a.py:2: IndentationError: "),
        (b"a\0", "a.py"),
        (b"a = 1\n", None),
    ],
)
def test_half_a_file_has_a_syntax_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_bytes(text)
    found = syntax_error("a.py")
    assert (found is None) == (said is None)
    assert said is None or (found is not None and found.startswith(said))
    assert syntax_error("missing.py") is None


# -- what changed ----------------------------------------------------------------------

BREAK = check_runs.ITEM
SUSPECTED = replace(BREAK, kind="hazard", origin="static", severity="low")


def run(*findings: Finding) -> Run:
    return check_runs.check(*findings)


def test_what_was_not_there_has_appeared() -> None:
    twin = replace(BREAK, line=9)
    assert history.appeared(run(), run(BREAK)) == [BREAK]
    assert history.appeared(run(BREAK), run(replace(BREAK, line=50))) == []
    assert history.appeared(run(BREAK), run(BREAK, twin)) == [twin]
    assert history.appeared(run(replace(BREAK, status="resolved")), run(BREAK))
    assert history.appeared(run(), run(replace(BREAK, status="intentional"))) == []
    renamed = replace(BREAK, function="Net.run")
    assert history.appeared(run(BREAK), run(renamed)) == []
    assert history.appeared(run(BREAK), run(BREAK, renamed)) == [renamed]


def test_a_suspicion_appears_once_it_is_confirmed() -> None:
    assert SUSPECTED.identity == BREAK.identity
    assert history.appeared(run(SUSPECTED), run(BREAK)) == [BREAK]
    assert history.appeared(run(BREAK), run(SUSPECTED)) == []
    assert history.appeared(run(SUSPECTED), run(SUSPECTED)) == []
    assert history.appeared(run(), run(SUSPECTED)) == [SUSPECTED]


NESTED = """
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        for _ in range(2):
            if x.sum() > 0:
                x = x + 1
        y = x * 2
        return y + y.mean().item()


def make():
    return Net(), [(torch.ones(4),)]
"""


def test_what_a_break_had_hidden_is_told_apart_from_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[api.SeenSource] = []
    Path("model.py").touch()
    target = api.parse("model.py:make")

    def checked(text: str) -> Run:
        Path("model.py").write_text(text)

        def observing(observation: Any) -> None:
            plain = api.SeenSource.of(target, observation).to_json()
            seen.append(api.SeenSource.from_json(plain))

        return api.check(target, effort="quick", quiet=True, observing=observing)

    with forked():
        before = checked(NESTED)
        after = checked(
            NESTED.replace("if x.sum() > 0", "if x.ndim > 0").replace(
                "y = x * 2", "y = x * 2; print(y)"
            )
        )
    assert seen[0].texts == {str(tmp_path / "model.py"): NESTED}
    changes = api.changes_since(before, after, seen[0])
    assert {f.code for f in changes.resolved} >= {"GB102"}
    assert [f.code for f in changes.hidden if f.severity == "high"] == ["GB101"]
    assert [f.code for f in changes.new if f.severity == "high"] == ["GB104"]
    text = report.render_changes(after, changes)
    parts = [text.index(w) for w in ("\nResolved:", "\nHidden before:", "\nNew:")]
    assert parts == sorted(parts)
    assert text.index("GB101 high") < parts[2] < text.index("GB104 high")
    same = api.changes_since(after, after, seen[1])
    assert not (same.new or same.hidden) and same.unchanged
