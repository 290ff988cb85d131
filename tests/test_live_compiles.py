"""`check --live`: what is compiling now, in words, as lines and on a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import terminals
from commands import PROGRAM

from torchproof import cli
from torchproof.cli import compile_display
from torchproof.cli.compile_display import LineChooser
from torchproof.cli.output_relay import ScreenLines
from torchproof.observe.stack_sampler import StackSampler
from torchproof.observe.timeline import Recorder
from torchproof.records.timeline import TimelineReader
from torchproof.report import compile_status
from torchproof.report.compile_status import LiveProcess, Status

S = 1_000_000_000
MAIN = "main thread"


class Lines:
    """The file of a process, as it grows."""

    def __init__(self, **process: Any) -> None:
        self.process = LiveProcess(7)
        self._number = 0
        self.process.add({"do": "process", "name": "breaks", "ns": 0, **process})

    def begin(self, at_s: float, name: str, category: str, **details: Any) -> int:
        self._number += 1
        words = {"track": details.pop("track", MAIN), "category": category}
        line = {"do": "begin", "id": self._number, "name": name, "details": details}
        self.process.add({**line, **words, "ns": int(at_s * S)})
        return self._number

    def frame(self, at_s: float, compile_id: str = "0/0", **details: Any) -> int:
        words = {"function": "step", "place": "train.py:7", "compile_id": compile_id}
        return self.begin(
            at_s, f"compile step [{compile_id}]", "compile", **words | details
        )

    def phase(self, at_s: float, name: str, **details: Any) -> int:
        return self.begin(at_s, name, "phase", **{"torch_name": "its_own", **details})

    def add(self, do: str, at_s: float, **values: Any) -> None:
        self.process.add({"do": do, "ns": int(at_s * S), **values})

    def stack(self, at_s: float, phase: str | None, place: str | None) -> None:
        words = {"track": MAIN, "phase": phase, "place": place, "function": "main"}
        self.add("stack", at_s, **words)

    def now(self, at_s: float) -> list[Status]:
        return compile_status.statuses([self.process], int(at_s * S))


# -- words -----------------------------------------------------------------------------


def test_a_compilation_has_its_function_phase_time_and_reason() -> None:
    lines = Lines()
    lines.frame(2, "0/1", reason="size 0 of x was 4, is 6")
    lines.phase(2, "Inductor")
    lines.phase(4, "pass.pattern_0", torch_name="pass.pattern_0")  # torch's own name
    lines.phase(4, "C++ compiler")
    [status] = lines.now(38)
    assert status.head == "compiling step (train.py:7) [0/1]"
    why = "recompile: size 0 of x was 4, is 6"
    assert status.rest == f"C++ compiler, 34 s; 36 s in all; {why}"
    assert status.line == f"{status.head}: {status.rest}"
    assert status.compiles and status.seconds == 36


@pytest.mark.parametrize(
    ("compile_id", "details", "why"),
    [
        ("0/0", {}, "first compilation"),
        ("0/2", {}, "recompile"),
        ("1/0", {"after_break": True}, "the rest of the function, after a graph break"),
    ],
)
def test_why_it_compiles(compile_id: str, details: dict[str, Any], why: str) -> None:
    lines = Lines()
    lines.frame(0, compile_id, **details)
    assert [status.rest for status in lines.now(0.5)] == [f"Dynamo, 0 s; {why}"]


def test_a_backward_graph_has_the_name_of_its_forward_function() -> None:
    lines = Lines()
    number = lines.frame(2, backward=True)
    [status] = lines.now(3)
    assert "the backward graph of step (train.py:7) [0/0]" in status.head
    assert status.rest == "AOTAutograd, 1 s"
    lines.add("end", 4, id=number)
    lines.begin(5, "compile", "compile", compile_id="0/0", backward=True)
    [status] = lines.now(6)  # the forward graph was not compiled in this process
    assert "compiling a backward graph [0/0]" in status.head


def test_threads_that_a_compilation_waits_for_are_its_phase() -> None:
    lines = Lines()
    lines.frame(0)
    lines.phase(1, "waiting for kernels")
    lines.phase(2, "C++ compiler", track="pool (2)")
    lines.phase(1, "C++ compiler", track="pool (1)")
    [status] = lines.now(10)
    assert status.line.startswith("compiling step (train.py:7) [0/0]: C++ compiler, 9")


def test_what_belongs_to_no_compilation_happens_at_run_time() -> None:
    lines = Lines()
    lines.phase(1, "autotuning")
    assert [status.line for status in lines.now(4)] == ["autotuning at run time, 3 s"]
    lines = Lines()
    lines.begin(1, "CUDA graph: recording for 4x8", "cudagraph")
    [status] = lines.now(2)
    assert status.head == "CUDA graph: recording for 4x8 at run time, 1 s"


def test_a_sample_tells_what_torch_has_no_event_for() -> None:
    lines = Lines()
    lines.frame(0)
    lines.phase(0, "Inductor: kernels")
    lines.add("sampling", 0, on=True)
    lines.stack(1, "C++ compiler", "train.py:9")
    lines.add("alive", 4)
    [status] = lines.now(5)
    assert ": Inductor: kernels (C++ compiler), 4 s" in status.line
    number = lines.phase(5, "Inductor: scheduling")
    lines.add("end", 5.2, id=number)
    assert ": Inductor: kernels, 6 s" in lines.now(6)[0].line  # is it still so?
    lines.add("alive", 8)
    assert ": Inductor: kernels (C++ compiler), 3 s" in lines.now(8.4)[0].line
    lines.stack(8, "code generation", "train.py:9")  # says no more than torch's event
    [status] = lines.now(9)
    assert ": Inductor: kernels, 9 s" in status.line


def test_a_process_that_compiles_nothing_says_where_it_is() -> None:
    lines = Lines()
    lines.add("sampling", 0, on=True)
    lines.stack(1, None, "train.py:18")
    [status] = lines.now(4)
    assert status.line == "nothing compiled yet, 4 s; at train.py:18 in main"
    number = lines.frame(4)
    lines.add("end", 5, id=number)
    lines.add("alive", 17)
    [status] = lines.now(17)
    assert status.head == "no compilation for 12 s" and not status.compiles
    assert "1 compilation before" in status.rest and "at train.py:18" in status.rest


def test_of_a_process_that_does_not_answer_the_last_known_state_is_told() -> None:
    lines = Lines()
    lines.add("sampling", 0, on=True)
    lines.stack(1, None, "train.py:18")
    [status] = lines.now(11)
    assert status.head.startswith("no sign of life for 10 s")
    assert status.rest == "until then nothing compiled yet, 1 s; at train.py:18 in main"
    lines.add("sampling", 11, on=False)  # it is asked to be silent: a timed command
    [status] = lines.now(31)
    assert "no sign of life" not in status.line and "train.py" not in status.rest


def test_a_phase_is_counted_while_its_process_answers() -> None:
    lines = Lines()
    lines.add("sampling", 0, on=True)
    lines.frame(2)
    lines.phase(3, "tracing")
    lines.add("alive", 5)
    assert lines.now(9)[0].rest.startswith("tracing, 6 s")
    [status] = lines.now(45)
    assert status.head.startswith("no sign of life for 40 s") and status.compiles
    assert "until then compiling step (train.py:7) [0/0]: tracing, 2 s" in status.rest
    lines.add("alive", 46)
    assert lines.now(46)[0].rest.startswith("tracing, 43 s")


def test_places_are_relative_to_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = Lines()
    lines.add("sampling", 0, on=True)
    lines.stack(0, None, f"{tmp_path}/train.py:18")
    assert "at train.py:18 in main" in lines.now(1)[0].rest
    lines.frame(1, place=f"{tmp_path}/model.py:7")
    assert "compiling step (model.py:7)" in lines.now(2)[0].head
    lines = Lines()
    lines.frame(1, place="/opt/lib/python3/site-packages/timm/layers/mlp.py:7")
    assert "compiling step (timm/layers/mlp.py:7)" in lines.now(2)[0].head


def test_a_program_that_has_ended_is_at_no_line() -> None:
    lines = Lines()
    lines.add("sampling", 0, on=True)
    lines.stack(1, None, "train.py:18")
    lines.add("exiting", 2)
    [status] = lines.now(30)
    assert status.line == "nothing compiled yet, 30 s; the interpreter is exiting"


def test_a_worker_between_commands_is_not_shown() -> None:
    lines = Lines(name="full", runs_commands=True)
    assert lines.now(5) == []
    number = lines.begin(5, "sample", "command")
    [status] = lines.now(7)
    assert (
        status.line.startswith("full: nothing compiled yet")
        and "in sample" in status.rest
    )
    lines.add("end", 8, id=number)
    assert lines.now(9) == []


def test_only_the_present_is_kept() -> None:
    lines = Lines()
    for at in range(100):
        lines.add("end", at, id=lines.frame(at, f"0/{at}"))
        lines.add("moment", at, track=MAIN, name="x", category="break", details={})
    assert not lines.process.spans and not lines.process.moments
    assert lines.process.compiled == 100


# -- lines -----------------------------------------------------------------------------


def compiling(what: str, seconds: float) -> Status:
    return Status(what, f"{what}, {seconds} s", "", seconds, True)


def idle(seconds: float) -> Status:
    return Status("idle", f"no compilation for {seconds} s", "", seconds, False)


def told(states: Callable[[int], Status], seconds: int) -> list[tuple[int, str]]:
    chooser = LineChooser()
    return [
        (at, line)
        for at in range(seconds)
        for line in chooser.lines([states(at)], float(at))
    ]


def test_a_state_that_lasts_is_told_again_after_ten_seconds() -> None:
    lines = told(lambda at: compiling("C++ compiler", at), 25)
    assert [at for at, _ in lines] == [1, 11, 21]


def test_each_change_is_a_line_and_so_is_the_end() -> None:
    def state(at: int) -> Status:
        return compiling("a" if at < 5 else "b", at) if at < 8 else idle(at - 8)

    lines = told(state, 12)
    assert [at for at, _ in lines] == [1, 5, 9]


def test_a_program_that_compiles_nothing_is_told_every_ten_seconds() -> None:
    assert [at for at, _ in told(idle, 25)] == [10, 20]


def test_short_compilations_are_told_by_the_heartbeat_alone() -> None:
    lines = told(lambda at: compiling(f"graph {at}", 0.5), 25)
    assert [at for at, _ in lines] == [10, 20]


# -- samples ---------------------------------------------------------------------------


def here() -> int:
    return sys._getframe(1).f_lineno


def in_another_thread(act: Callable[[], None]) -> int:
    """Runs it while this thread waits; the line that waits."""
    thread = threading.Thread(target=act)
    for do in (thread.start, thread.join):
        do()  # one line, wherever the other thread begins
    return here() - 1


def test_a_sample_finds_the_users_line_and_is_written_once() -> None:
    written: list[dict[str, Any]] = []
    sampler = StackSampler(lambda do, **values: written.append({"do": do, **values}))

    def twice() -> None:
        sampler.sample()
        sampler.sample()

    line = in_another_thread(twice)
    [stack] = [each for each in written if each["track"] == MAIN]
    assert Path(stack["place"].rpartition(":")[0]).name == Path(__file__).name
    assert stack["place"].endswith(f":{line}") and stack["phase"] is None
    assert stack["function"] == "in_another_thread"


def test_the_sampler_is_no_thread_that_a_program_sees_and_pauses() -> None:
    written: list[str] = []
    alive = threading.Event()

    def write(do: str, **values: Any) -> None:
        written.append(do)
        if do == "alive":
            alive.set()

    sampler = StackSampler(write)
    with sampler.paused():
        pass
    assert written == []  # it was not started
    before = threading.enumerate()
    sampler.start()
    assert alive.wait(60) and threading.enumerate() == before
    with sampler.paused():
        assert not sampler._may_run.is_set()
    sampler._may_run.clear()  # for the rest of the tests


# -- processes that are not heard ------------------------------------------------------

LEAVES = """
import os, signal, sys, time
path = f"{sys.argv[2]}/{os.getpid()}.timeline"
now = time.monotonic_ns() - 10**10
with open(path, "w", buffering=1) as file:
    file.write('{"do":"process","name":"breaks","ns":%d}\\n' % now)
    file.write('{"do":"sampling","on":true,"ns":%d}\\n' % now)
    ACT
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("os.execv('/bin/sleep', ['sleep', '60'])", "replaced itself by sleep"),
        ("os.closerange(3, 64)", "closed the files of torchproof"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "stopped by a signal"),
        ("pass", "native code holds the GIL"),
    ],
)
def test_why_nothing_is_heard_of_a_process(tmp_path: Path, act: str, why: str) -> None:
    display = compile_display.CompileDisplay(tmp_path)
    words = ["-c", LEAVES.replace("ACT", act), "torchproof.child", str(tmp_path)]
    with subprocess.Popen([sys.executable, *words]) as child:
        try:
            deadline = time.monotonic() + 60
            while not any(why in each.head for each in display.statuses()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            child.kill()


def test_nothing_is_written_to_a_file_that_the_target_opens(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.happened("one", "cache")
    with (tmp_path / "mine").open("w") as mine:
        os.dup2(mine.fileno(), recorder._file)  # as after `os.closerange`
    recorder.happened("two", "cache")
    os.close(recorder._file)
    assert (tmp_path / "mine").read_text() == ""
    [written] = tmp_path.glob("*.timeline")
    assert "one" in written.read_text() and "two" not in written.read_text()


# -- output above the table ------------------------------------------------------------


def fed(text: str, size: int = 7) -> tuple[str, list[str]]:
    """What goes above the table, and what stays in it."""
    lines, read = ScreenLines(), text.encode()
    chunks = [read[at : at + size] for at in range(0, len(read), size)]
    complete = [line for chunk in chunks for line in lines.feed(chunk)]
    return "\n".join(complete), lines.unfinished


def test_lines_and_colours_go_above_the_table_as_they_are() -> None:
    text = "one\n\x1b[31mred\x1b[0m and \ttab \u00e9\n\n  four\r\n"
    assert fed(text + "rest") == (text.replace("\r", "")[:-1], ["rest"])


def test_of_a_progress_bar_the_last_state_is_kept() -> None:
    bar = "".join(f"\r{n:3d}% {'#' * n}" for n in range(101))
    assert fed(bar) == ("", [bar.rpartition("\r")[2]])
    assert fed(f"{bar}\nnext\n") == (f"{bar.rpartition(chr(13))[2]}\nnext", [])
    rich_bar = "".join(f"\r\x1b[2K\x1b[35m{n}%\x1b[0m" for n in range(5))
    assert fed(f"\x1b[?25l{rich_bar}\n\x1b[?25hend\n") == ("\x1b[35m4%\x1b[0m\nend", [])


def test_nested_bars_are_redrawn_in_place() -> None:
    inner = "".join(f"\n\rinner {n}\x1b[A" for n in range(9))
    bars = f"\router 0{inner}\router 1{inner}"
    above, rest = fed(bars)
    assert above == "outer 0" and rest == ["outer 1", "inner 8"]
    above, rest = fed(f"{bars}\n\r       \r\x1b[A\router 2\ndone\n")
    assert above == "outer 0\nouter 2" and rest == ["done"]


def test_no_command_but_colours_reaches_the_terminal() -> None:
    text = "\x1b]0;title\x07a\x1b[2J\x1b[5;5Hb\x1b(Bc\x1b7\x1b[?1049h\x07d\n"
    assert [fed(text, size)[0] for size in (1, 3, 99)] == ["abcd"] * 3


def test_output_without_a_line_end_is_split_and_not_lost() -> None:
    above, rest = fed("x" * 1_000_000, 4096)
    assert sum(map(len, rest)) < 100_000
    assert above.replace("\n", "") + "".join(rest) == "x" * 1_000_000


# -- real programs ---------------------------------------------------------------------

HANGS = """
import os, sys, time
os.mkdir("sub"); os.chdir("sub")
def main():
    print("the program prints", flush=True)
    for n in range(100):
        print(f"\\r{n}%", end="", file=sys.stderr, flush=True)
    print("\\rand does not end this line", end="", flush=True)
    time.sleep(600)
main()
"""


def alive(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        mine = str(folder) in " ".join(process.info["cmdline"] or ())
        mine = mine or Path(process.info["cwd"] or "/").is_relative_to(folder)
        if mine and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield process


def on_terminal(folder: Path, *words: str) -> str:
    return (
        f"import os, sys; os.chdir({str(folder)!r})\n"
        f"from torchproof.cli import main\nsys.exit(main({list(words)!r}))"
    )


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGHUP,
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_terminal_shows_where_a_program_hangs_and_is_left_clean(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)

    def when(sent: str) -> int | None:
        if "at hangs.py:9 in main" not in sent:
            return None
        if number != signal.SIGKILL:
            return number
        for process in alive(tmp_path):  # the check itself has another command line
            if "torchproof.observe.child" in process.cmdline():
                process.kill()
        return None

    program = on_terminal(tmp_path, "check", "hangs.py", "--live", "--format", "json")
    seen = terminals.run(program, environment={"TMPDIR": str(tmp_path)}, when=when)
    assert seen.code == (2 if number == signal.SIGKILL else 130)
    assert "nothing compiled yet, " in seen.sent
    lines = [
        line for line in seen.screen if line and not line.startswith("torchproof:")
    ]
    assert lines == ["the program prints", "and does not end this line"]
    assert not list(alive(tmp_path)) and not list(tmp_path.glob("torchproof-*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "2"),
        ("-q",),
        ("--effort", "static"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "hangs.py", "--live", *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == "" and "--live" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_process_that_ended_is_no_child(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        deadline = time.monotonic() + 60
        while compile_display._is_child(child.pid):  # it is a zombie then
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not compile_display._is_child(os.getpid())
    assert not compile_display._is_child(child.pid)
    assert TimelineReader(tmp_path, LiveProcess).update() == []


COMPILES = """
import torch

@torch.compile
def step(x):
    return x.sin() + 1

step(torch.ones(4))
"""
COMPILER = """#!/bin/sh
# {folder}
case "$*" in *.cpp*) exec sleep 600 ;; esac
exec g++ "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ctrl-c", "timeout"])
def test_a_compiler_that_hangs_is_shown_and_ended(tmp_path: Path, ending: str) -> None:
    (tmp_path / "train.py").write_text(COMPILES)
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(folder=tmp_path))
    compiler.chmod(0o755)
    own = {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "tmp").mkdir()
    limit = ["--timeout", "60"] if ending == "timeout" else []
    lines = []
    with subprocess.Popen(
        [*PROGRAM, "check", "train.py", "--live", *limit],
        cwd=tmp_path,
        env={**os.environ, **own, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "C++ compiler, " in line and ending == "ctrl-c":
                process.send_signal(signal.SIGINT)
    shown = [line for line in lines if "C++ compiler, " in line]
    assert shown and "compiling step (train.py:5) [0/0]" in shown[0]
    assert "first compilation" in shown[0]
    assert process.returncode == (130 if ending == "ctrl-c" else 2)
    assert not list(alive(tmp_path)) and not list(
        (tmp_path / "tmp").glob("torchproof-*")
    )


RECOMPILES = """
import time
import torch

def slow(graph, inputs):
    time.sleep(2.5)
    return graph.forward

@torch.compile(backend=slow)
def step(x):
    return x.sin() + 1

step(torch.ones(4))
step(torch.ones(6))
"""


@pytest.mark.slow
def test_lines_tell_the_reason_of_a_recompile(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECOMPILES)
    done = subprocess.run(
        [*PROGRAM, "check", "train.py", "--live", "--fail-on", "never"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert any("[0/0]" in line and "first compilation" in line for line in lines)
    again = [line for line in lines if "step (train.py:10) [0/1]" in line]
    assert any("recompile: size 0 of x was 4, is 6" in line for line in again)
    assert any(": backend, " in line for line in again)
