"""Programs started with signals ignored, as `nohup` and background jobs start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from commands import PROGRAM, run
from waiting import wait_for


def ignoring(numbers: Iterable[int], command: list[str]) -> list[str]:
    """A command that begins with these signals ignored."""
    program = "import os, signal, sys\n"
    program += "".join(
        f"signal.signal({int(number)}, signal.SIG_IGN)\n" for number in numbers
    )
    program += "os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", program, *command]


@pytest.mark.parametrize(
    ("ignored", "sent", "code"),
    [
        # nohup, and a background job: it goes on
        ((signal.SIGHUP, signal.SIGINT), (signal.SIGHUP, signal.SIGINT), 0),
        ((signal.SIGHUP, signal.SIGINT, signal.SIGTERM), (signal.SIGTERM,), 130),
    ],
)
def test_a_check_keeps_signals_ignored_that_it_was_started_with(
    ignored: tuple[int, ...], sent: tuple[int, ...], code: int, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(
        "import os, time\nopen('begun', 'w').close()\n"
        "while not os.path.exists('go'):\n    time.sleep(0.05)\n"
    )
    command = [*PROGRAM, "check", "waits.py", "--effort", "quick", "--format", "json"]
    with subprocess.Popen(
        ignoring(ignored, [*command, "-q", "--fail-on", "never"]),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(lambda: (tmp_path / "begun").exists() or process.poll() is not None)
        for number in sent:
            os.kill(process.pid, number)
        if code == 0:
            time.sleep(0.5)
            (tmp_path / "go").touch()
        stdout, _ = process.communicate(timeout=120)
    assert process.returncode == code
    assert json.loads(stdout)["ending"] == ("interrupted" if code else "finished")


def test_exit_codes_of_children_are_known_where_sigchld_is_ignored(
    tmp_path: Path,
) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    command = [*PROGRAM, "check", "fails.py", "--effort", "quick", "--format", "json"]
    done = run(ignoring([signal.SIGCHLD], [*command, "-q"]), tmp_path)
    assert done.returncode == 2 and json.loads(done.stdout)["exit_code"] == 3
