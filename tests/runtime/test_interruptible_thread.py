"""Work that is given up ends, or is said to be stuck, and its caller goes on."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from typing import NoReturn

import pytest

from torchproof.runtime import interruptible_thread

SOON = 30.0  # seconds that nothing here needs, whatever else the machine does


def loop() -> NoReturn:
    while True:
        pass


def stubborn() -> None:
    """Catches what ends it, twice."""
    for _ in range(2):
        try:
            loop()
        except interruptible_thread.Interrupted:
            continue
    loop()


def poll() -> NoReturn:
    """Waits nearly all the time."""
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("work", [loop, stubborn, poll])
def test_a_loop_ends_when_it_is_given_up(work: object) -> None:
    attempt = interruptible_thread.InterruptibleThread(work, "looping")  # type: ignore[arg-type]
    assert not attempt.wait(time.monotonic() + 0.1)
    assert attempt.stack()[-1].name in ("loop", "poll")
    assert attempt.stop(SOON)
    assert isinstance(attempt.error, interruptible_thread.Interrupted)


def test_work_that_ends_has_a_value_or_an_error() -> None:
    fine = interruptible_thread.InterruptibleThread(lambda: 7, "fine")
    assert fine.wait(time.monotonic() + SOON)
    assert (fine.value, fine.error) == (7, None)
    failed = interruptible_thread.InterruptibleThread(lambda: 1 // 0, "failed")
    assert failed.wait(time.monotonic() + SOON)
    assert isinstance(failed.error, ZeroDivisionError)
    assert fine.stop(0.0) and failed.stop(0.0)


def test_a_call_into_c_is_stuck_until_it_comes_back() -> None:
    attempt = interruptible_thread.InterruptibleThread(
        lambda: ctypes.CDLL(None).usleep(2_000_000), "sleeping"
    )
    assert not attempt.stop(0.2)
    assert attempt.wait(time.monotonic() + SOON)
    # What C++ would call next is not a place to raise in.
    assert (attempt.value, attempt.error) == (0, None)


def test_the_calling_thread_is_interrupted_only_inside() -> None:
    with (
        pytest.raises(interruptible_thread.Interrupted),
        interruptible_thread.interrupt_after(
            time.monotonic() + 0.1, lambda thread: True
        ),
    ):
        loop()
    for _ in range(200):  # what was sent and did not arrive must never arrive
        with interruptible_thread.interrupt_after(
            time.monotonic() + 1e-4, lambda thread: False
        ):
            pass
    time.sleep(0.2)
    assert not [t for t in threading.enumerate() if t.name == "torchproof-deadline"]


def test_threads_take_short_turns_only_while_asked_for() -> None:
    usual = sys.getswitchinterval()
    with (
        interruptible_thread.short_switch_interval(),
        interruptible_thread.short_switch_interval(),
    ):
        assert sys.getswitchinterval() < usual
    assert sys.getswitchinterval() == pytest.approx(usual)


BLOCKED = """
import ctypes, faulthandler, sys
from torchproof.runtime import gil_watchdog

faulthandler.dump_traceback_later(1000)  # somebody's own watchdog

def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(3)

with gil_watchdog.dump_stacks_after(1.0):
    hold_the_interpreter()
with gil_watchdog.dump_stacks_after(1.0):
    print("quick")
"""


def test_a_call_that_holds_the_interpreter_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "quick\n"
    assert done.stderr.count("hold_the_interpreter") == 1


PROFILED = """
import cProfile, time
from torchproof.runtime import interruptible_thread as attempts

def loop():
    while True:
        pass

def work():
    return sum(range(10))

attempts.InterruptibleThread(loop, "looping").stop(20.0)
for _ in range(20):  # interrupted when it is about to end, or has ended
    attempts.InterruptibleThread(lambda: time.sleep(0.001), "ending").stop(20.0)
try:
    with attempts.interrupt_after(time.monotonic(), lambda thread: True):
        loop()
except attempts.Interrupted:
    pass
profile = cProfile.Profile()
print(profile.runcall(work))
"""


def test_nothing_is_pending_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROFILED],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "45\n"
