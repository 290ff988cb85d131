"""The progress of a verb, on a real terminal and off one."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable
from dataclasses import replace

import pytest
import terminals
import tune_runs
from facts import missing

from torchproof.cli import progress_line
from torchproof.cli.progress_line import ProgressLine
from torchproof.records import PartState, SearchState, Trial

STATE = SearchState(
    trials=tuple(map(Trial.from_json, tune_runs.TRIALS)),
    running=("full+graph (GPU 0)",),
    left=7,
    time_left_s=312.0,
)
PROGRAM = """
import subprocess, sys, time, tune_runs
from torchproof.cli.progress_line import ProgressLine
from torchproof.records import SearchState, Trial
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


def program(then: str = "pass") -> str:
    return textwrap.dedent(PROGRAM).format(then=then)


# -- on a terminal ---------------------------------------------------------------------


def test_terminal_has_one_line_and_those_of_trials() -> None:
    seen = terminals.run(program(CHILD))
    assert seen.code == 0 and seen.out == "the answer\n"
    assert "timing eager" in seen.sent and "\x1b[?25l" not in seen.sent
    eager, full, *rest = [line for line in seen.screen if line]
    assert eager.startswith("eager: ") and full.startswith("full: ")
    assert [text.strip()[:1] for text in rest] == ["1"]  # of the child process


def test_ctrl_c_leaves_no_progress_line() -> None:
    def enough(sent: str) -> int | None:
        return signal.SIGINT if "full: " in sent else None

    seen = terminals.run(program("time.sleep(30)"), when=enough)
    shown = "\n".join(seen.screen)
    assert seen.code != 0 and "KeyboardInterrupt" in shown
    assert "timing eager" not in shown


def test_long_line_is_cut_to_the_terminal() -> None:
    seen = terminals.run(program("shown('x' * 500)"), columns=40)
    assert "x" * 39 in seen.sent and "x" * 40 not in seen.sent


def test_dumb_terminal_gets_lines() -> None:
    seen = terminals.run(program(), environment={"TERM": "dumb"})
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
