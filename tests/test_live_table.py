"""The live display of a search, on a real terminal and off one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import terminals
import tune_runs
from facts import missing

from torchproof.cli import live_table
from torchproof.cli.live_table import LiveTable
from torchproof.records import PartState, SearchState, Trial

STATE = SearchState(
    trials=tuple(map(Trial.from_json, tune_runs.TRIALS)),
    running=("full+graph (GPU 0)",),
    left=7,
    time_left_s=312.0,
)
PROGRAM = """
import sys, time, tune_runs
from torchproof.cli import live_table
from torchproof.records import SearchState, Trial
live_table.FRAMES_PER_SECOND = 10
shown = live_table.LiveTable()
try:
    shown("timing eager")
    trials = tuple(map(Trial.from_json, tune_runs.TRIALS))
    shown.show(SearchState(trials, ("full+graph (GPU 0)",), 7, 312.0))
    {then}
finally:
    shown.end()
print("the answer")
"""


def program(then: str = "time.sleep(0.5)") -> str:
    return textwrap.dedent(PROGRAM).format(then=then)


def frame(sent: str) -> list[str]:
    """The last frame before the board was taken away."""
    end = sent.rindex("5 min")
    return terminals.screen(sent[: sent.index("\r", end)])


# -- on a terminal ---------------------------------------------------------------------


def test_a_terminal_shows_a_leaderboard_and_is_left_as_it_was() -> None:
    others = "time.sleep(0.5); print('a warning', file=sys.stderr); print('result')"
    seen = terminals.run(program(others))
    assert seen.code == 0
    drawn = frame(seen.sent)
    names = [line.split("  ")[0].strip() for line in drawn]
    best = ["regional+graph", "full", "eager"]
    start = names.index("strategy") + 1
    assert names[start : start + 3] == best
    assert "core:encode" not in names
    shown = "\n".join(drawn)
    for told in (
        "1.20 ms",
        "2.58x",
        "2.20 s *",
        "512 MiB",
        "reference",
        "timing eager",
    ):
        assert told in shown
    assert missing(shown, "full+graph (GPU 0)", "7 trials", "5 min 1", "11 done") == []
    assert ", 5 " in shown.rpartition("11 done")[2], "five are not ranked"
    # In the end only what others said stands there; stdout has the answers alone.
    assert [line for line in seen.screen if line] == ["a warning"]
    assert seen.out == "result\nthe answer\n"


def test_ctrl_c_leaves_the_cursor_and_nothing_else() -> None:
    def enough(sent: str) -> int | None:
        # Time left runs on by itself; a busy machine skips seconds.
        shown = set(re.findall(r"[45] min \d+ s", sent))
        return signal.SIGINT if len(shown) > 1 else None

    seen = terminals.run(program("time.sleep(30)"), when=enough)
    assert seen.code != 0
    assert "\x1b[?25l" not in seen.sent  # hides it
    shown = "\n".join(seen.screen)
    assert "KeyboardInterrupt" in shown
    assert "regional+graph" not in shown and " min " not in shown


@pytest.mark.slow
def test_little_room_cuts_names_and_not_numbers() -> None:
    seen = terminals.run(program(), columns=40, environment={"NO_COLOR": "1"})
    drawn = frame(seen.sent)
    assert max(map(len, drawn)) <= 40
    [switch] = [line for line in drawn if line.startswith("full, coord")]
    assert "\u2026" in switch and switch.endswith("1.90 ms      1.63x")
    assert not any("512 MiB" in line for line in drawn)
    assert "\x1b[3" not in seen.sent and "\x1b[9" not in seen.sent  # no colour


def test_a_dumb_terminal_gets_lines() -> None:
    seen = terminals.run(program("pass"), environment={"TERM": "dumb"})
    assert "\x1b" not in seen.sent
    [line] = [line for line in seen.sent.splitlines() if line.startswith("full: ")]
    assert missing(line, "1.93 ms", "1.61x", "12.1 s", "7 trials") == []


def test_a_terminal_shows_the_part_of_a_check_and_what_is_left() -> None:
    then = (
        "shown.enter(PartState('breaks', 1, 3, limit_s=300.0)); time.sleep(0.4);"
        " shown.enter(PartState('baseline', 2, 3, 73.0)); time.sleep(0.4)"
    )
    source = program(then).replace(
        "import SearchState", "import PartState, SearchState"
    )
    sent = terminals.run(source).sent
    assert "part 1 of 3, breaks: 0 s so far, breaks ends after 5 min" in sent
    assert re.search(
        r"part 2 of 3, baseline: \d s so far, about 1 min 1[23] s left", sent
    )


def test_no_estimate_is_made_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = LiveTable()
    monkeypatch.setattr(shown, "is_terminal", True)
    monkeypatch.setattr(shown, "_draw", lambda: None)
    assert shown._part_text() == ""
    shown.enter(PartState("breaks", 1, 3))
    clock.now = 12.0
    assert shown._part_text() == "part 1 of 3, breaks: 12 s so far"
    shown.enter(PartState("baseline", 2, 3, left_s=5.0))
    clock.now = 16.0
    assert shown._part_text().endswith("16 s so far, about 1 s left")
    clock.now = 18.0  # longer than estimated
    assert shown._part_text().endswith("18 s so far")


def test_parts_are_not_shown_off_a_terminal(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = LiveTable()
    shown.enter(PartState("breaks", 1, 3))
    assert capsys.readouterr().err == ""


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
    monkeypatch.setattr(live_table, "time", found)
    return found


def test_off_a_terminal_each_trial_is_a_line(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = LiveTable()
    for number in range(1, len(tune_runs.TRIALS) + 1):
        some = replace(STATE, trials=STATE.trials[:number])
        shown.show(some)
        shown.show(some)
    shown.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines.pop(3).startswith("1 trial "), "of an earlier search"
    why = {trial["name"]: str(trial["why"]).rstrip(".") for trial in tune_runs.TRIALS}
    for line, (name, *facts) in zip(
        lines,
        [
            ("eager", "3.10 ms", "20.0 ms"),
            ("full", "1.93 ms", "1.61x", "12.1 s"),
            ("regional+graph", "1.20 ms", "2.58x", "4.10 s"),
            ("regional", "2.00 ms", "1.55x", "3.30 s"),
            (tune_runs.SWITCH, "1.90 ms", "1.63x", "2.20 s", "warm"),
            ("core:encode", "wrong", why["core:encode"]),
            ("full:max-autotune", "timed out", why["full:max-autotune"]),
            ("nested", "out of memory"),
            ("core:decode", "failed", why["core:decode"]),
            ("full+graph", "not applicable", why["full+graph"]),
        ],
        strict=True,
    ):
        assert line.startswith(f"{name}: ")
        assert missing(line, *facts, "7 trials", "5 min 12 s") == []
        assert ("warm" in line) == (name == tune_runs.SWITCH)


def test_what_is_not_known_is_not_said(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = LiveTable()
    same = {"verdict": "same"}
    shown.show(SearchState((Trial("full", step_ms=1.93, numerics=same),), left=1))
    assert capsys.readouterr().err == "full: 1.93 ms; 1 trial left, within 0 s\n"


def test_other_lines_come_every_five_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = LiveTable()
    for second in range(12):
        clock.now = float(second)
        shown(f"second {second}")
    assert capsys.readouterr().err == "second 0\nsecond 5\nsecond 10\n"


PRINTS = """
import subprocess, sys, time
from torchproof.cli import live_table
live_table.FRAMES_PER_SECOND = 10
shown = live_table.LiveTable(quiet={quiet})
with shown.opened():
    shown("timing eager")
    text = "import sys, time; print('epoch 0', file=sys.stderr); sys.stderr.flush();"
    text += "print('epoch 1', end='', file=sys.stderr); time.sleep(0.5)"
    subprocess.run([sys.executable, "-c", text])
print("the answer")
"""


@pytest.mark.parametrize("quiet", [False, True])
def test_what_a_child_prints_is_above_the_table(quiet: bool) -> None:
    seen = terminals.run(PRINTS.format(quiet=quiet))
    assert seen.code == 0 and ("timing eager" in seen.sent) != quiet
    assert [line for line in seen.screen if line] == ["epoch 0", "epoch 1"]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LiveTable(quiet=True)
    shown("timing eager")
    shown.show(STATE)
    shown.end()
    assert capsys.readouterr().err == ""


def test_after_the_end_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LiveTable()
    shown.end()
    shown.show(STATE)
    shown("late")
    assert capsys.readouterr().err == ""


def test_rich_is_loaded_by_a_terminal_alone() -> None:
    text = program("pass") + "\nsys.exit('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        cwd=terminals.ROOT / "tests",
        check=False,
    )
    assert done.returncode == 0, done.stderr
