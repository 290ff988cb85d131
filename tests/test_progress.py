"""Progress of compilations, parts and trials, on a terminal and off one."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pexpect
import pytest
import tune_runs
from facts import missing

from torchproof.checking.observed_parts import PartProgress
from torchproof.cli import progress_line
from torchproof.cli.progress_line import ProgressLine
from torchproof.observe import size_sweep
from torchproof.observe.capture import _ProgressReporter
from torchproof.process import Followed
from torchproof.records import (
    Frame,
    Part,
    PartState,
    Run,
    SearchState,
    Trial,
    WrapperEvent,
)
from torchproof.targets import Options, Target

SOURCE = """\
def decorator(f):
    def wrapper(self, *args):
        return f(self, *args)
    return wrapper

class Block:
    @decorator
    def forward(self, x):
        return x
"""


OF_TORCH = "/lib/python3.11/site-packages/torch/_dynamo/external_utils.py"


@pytest.mark.parametrize(
    ("file", "name", "line", "shown"),
    [
        ("model.py", "wrapper", 2, "Net"),
        ("model.py", "forward", 7, "Block.forward"),
        ("model.py", "torch_dynamo_resume_in_forward_at_9", 9, "Block.forward"),
        ("model.py", "forward", 40, "Net"),  # the code of the compiled model
        (OF_TORCH, "inner", 67, "Net"),
    ],
)
def test_functions_have_their_names(
    file: str, name: str, line: int, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    line_of_progress = said(str(tmp_path / file), line, name)
    assert line_of_progress == f"began to compile {shown} in call 1 of 3 after 12 s"


def said(file: str, line: int, name: str) -> str:
    lines: list[str] = []
    report = _ProgressReporter(lines.append)
    net = WrapperEvent(name="Net", function=Frame(file, 40, "forward"))
    report({"kind": "plan", "calls": 3}, 1.0)
    report({"kind": "wrapper", **net.to_json()}, 1.0)
    report({"kind": "trace", "metadata": {"str": [file, 8]}}, 1.0)
    stack = [{"filename": 8, "line": line, "name": name}]
    start = {"kind": "trace", "call": 0, "metadata": {"dynamo_start": {"stack": stack}}}
    report(start, 0.5)  # too early to be told
    report(start, 12.0)
    return " | ".join(lines)


# -- the parts of a check --------------------------------------------------------------

PARTS = ["breaks", "baseline", "batch", "static"]
EARLIER = Run(
    "id",
    "target",
    "",
    {},
    {},
    parts={
        "breaks": Part("found", seconds=10.0),
        "baseline": Part("passed", seconds=60.0),
        "batch": Part("skipped", "no keyword"),
        "static": Part("passed", seconds=1.0),
    },
)


def states_of(earlier: Run | None, *begun: tuple[str, float]) -> list[PartState]:
    """What is shown as parts begin at these times."""
    states: list[PartState] = []
    times = iter([second for _, second in begun])
    progress = PartProgress(
        PARTS, earlier, print, show=states.append, clock=lambda: next(times)
    )
    for part, _ in begun:
        progress.enter(part)
    return states


FAILED = {
    name: {**EARLIER.parts, name: Part("failed")}
    for name in ("breaks", "baseline", "static")
}


@pytest.mark.parametrize(
    ("earlier", "left_s"),
    [
        (None, [None, None, None]),  # the first check of a target
        # At first nothing of this run to scale by, then twice as slow as before.
        (EARLIER, [None, 2 * (60 + 0 + 1), 2 * 1]),
        *((replace(EARLIER, parts=parts), [None, None]) for parts in FAILED.values()),
    ],
)
def test_time_left_is_estimated_from_the_earlier_check(
    earlier: Run | None, left_s: list[float | None]
) -> None:
    begun = ("breaks", 0.0), ("baseline", 20.0), ("static", 140.0)
    states = states_of(earlier, *begun)
    assert [(each.number, each.count) for each in states] == [(1, 4), (2, 4), (4, 4)]
    assert [each.left_s for each in states][: len(left_s)] == left_s


def test_sizes_are_counted_and_the_rest_estimated_from_those_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = {("batch", 4): 10.0, ("batch", 8): 14.0, ("sequence", 128): 15.0}

    def follow(module: str, job: str, notice: Any, conditions: Any) -> Followed:
        for (dimension, value), seconds in begun.items():
            notice({"kind": "size", "dimension": dimension, "value": value}, seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(size_sweep, "follow", follow)
    lines: list[str] = []
    target = Target("file.py:make", "factory", "file.py")
    with pytest.raises(KeyboardInterrupt):
        size_sweep.recompiles_by_size(
            target, Options(), {"batch": (4, 8), "sequence": (128, 192)}, lines.append
        )
    assert lines == [
        "counting recompiles, batch 4, size 1 of 4",
        "counting recompiles, batch 8, size 2 of 4, about 12 s left",
        "counting recompiles, sequence 128, size 3 of 4, about 5 s left",
    ]


# -- the line of a verb ----------------------------------------------------------------

STATE = SearchState(
    trials=tuple(map(Trial.from_json, tune_runs.TRIALS)),
    running=("full+graph (GPU 0)",),
    left=7,
    time_left_s=312.0,
)
PROGRAM = """
import signal, subprocess, sys, tune_runs
from torchproof.cli.progress_line import ProgressLine
from torchproof.records import SearchState, Trial
sys.stdout = open({out!r}, "w")
shown = ProgressLine()
with shown.opened():
    shown("timing eager")
    trials = tuple(map(Trial.from_json, tune_runs.TRIALS))[:2]
    shown.show(SearchState(trials, ("full+graph (GPU 0)",), 7, 312.0))
    {then}
print("the answer")
"""
CHILD = (
    "subprocess.run([sys.executable, '-c', 'import sys; print(1, file=sys.stderr)'])"
)


# -- on a terminal ---------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """`sent` is all that came over the terminal, `out` what went to stdout."""

    sent: str
    out: str

    @property
    def screen(self) -> list[str]:
        """The lines that stand there in the end: what came after each was cleared."""
        lines = [line.rstrip("\r") for line in self.sent.split("\n")]
        return [re.split(r"\r(?:\x1b\[K)?", line)[-1].rstrip() for line in lines]


def on_terminal(folder: Path, then: str, term: str = "xterm") -> Seen:
    """The program on a terminal of 80 columns."""
    out = folder / "out"
    source = textwrap.dedent(PROGRAM).format(then=then, out=str(out))
    own = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
    variables = {k: v for k, v in os.environ.items() if k not in own} | {"TERM": term}
    child = pexpect.spawn(
        *(sys.executable, ["-c", source]),
        dimensions=(40, 80),
        encoding="utf-8",
        env=variables,
        timeout=60,
    )
    child.expect(pexpect.EOF)
    return Seen(child.before, out.read_text())


def test_terminal_has_one_line_and_those_of_trials(tmp_path: Path) -> None:
    seen = on_terminal(tmp_path, f"shown('x' * 500); {CHILD}")
    assert "x" * 79 in seen.sent and "x" * 80 not in seen.sent  # cut to the terminal
    assert seen.out == "the answer\n"
    assert "timing eager" in seen.sent and "\x1b[?25l" not in seen.sent
    eager, full, *rest = [line for line in seen.screen if line]
    assert eager.startswith("eager: ") and full.startswith("full: ")
    assert [text.strip()[:1] for text in rest] == ["1"]  # of the child process


def test_ctrl_c_leaves_no_progress_line(tmp_path: Path) -> None:
    seen = on_terminal(tmp_path, "signal.raise_signal(signal.SIGINT)")
    shown = "\n".join(seen.screen)
    assert "KeyboardInterrupt" in shown and "timing eager" not in shown


def test_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    seen = on_terminal(tmp_path, "pass", term="dumb")
    assert "\x1b" not in seen.sent
    [line] = [line for line in seen.sent.splitlines() if line.startswith("full: ")]
    assert missing(line, "1.93 ms", "1.61x", "12.1 s", "7 trials") == []


def test_no_estimate_is_made_up(clock: Clock) -> None:
    shown = ProgressLine()
    assert shown._part_text() == ""
    shown.enter(PartState("breaks", 1, 3, limit_s=300.0))
    clock.now = 12.0
    text = "part 1 of 3, breaks: 12 s so far, breaks ends after 5 min"
    assert shown._part_text() == text
    shown.enter(PartState("baseline", 2, 3, left_s=5.0))
    clock.now = 16.0
    assert shown._part_text().endswith("16 s so far, about 1 s left")
    clock.now = 18.0  # longer than estimated
    assert shown._part_text().endswith("18 s so far")


# -- elsewhere -------------------------------------------------------------------------


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress_line, "time", found)
    return found


def test_each_trial_is_a_line(
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
    snapshot: Callable[[str, str], None],
) -> None:
    shown = ProgressLine()
    for number in range(1, len(tune_runs.TRIALS) + 1):
        some = replace(STATE, trials=STATE.trials[:number])
        shown.show(some)
        shown.show(some)
    shown.end()
    snapshot("progress.txt", capsys.readouterr().err)


def test_other_lines_come_every_five_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ProgressLine()
    shown.enter(PartState("breaks", 1, 3))  # parts are for terminals
    for second in range(12):
        clock.now = float(second)
        shown(f"second {second}")
    assert capsys.readouterr().err == "second 0\nsecond 5\nsecond 10\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_nothing_is_printed_if_quiet_or_after_the_end(
    quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ProgressLine(quiet=quiet)
    if not quiet:
        shown.end()
    shown("timing eager")
    shown.show(STATE)
    assert capsys.readouterr().err == ""
