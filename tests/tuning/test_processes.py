"""Worker processes that reply at once, late, in parts, or not any more."""

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from torchproof.measure.replies import Facts
from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.worker_process import (
    WorkerError,
    WorkerProcess,
    WorkerProcesses,
)
from torchproof.process import children

ANSWER = b'{"reply": {"steady": true, "pass_ms": %d}}\n'


class Puppet:
    """Stands in for a child: the test writes its answers, and says when it is over."""

    def __init__(self, command: Any, *, pass_fds: Any, **settings: Any) -> None:
        self.answers = os.dup(pass_fds[0])
        self.pid, self.lives = 2**22 + 1, True  # above what Linux gives

    def says(self, *parts: bytes) -> None:
        os.write(self.answers, b"".join(parts))

    def hangs_up(self) -> None:
        os.close(self.answers)

    def poll(self) -> int | None:
        return None if self.lives else 3

    def wait(self, timeout: float | None = None) -> int:
        if self.lives and timeout is not None:
            raise subprocess.TimeoutExpired("puppet", timeout)
        return 3


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WorkerProcess, Puppet]]:
    kept = {"TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(children, "subprocess", SimpleNamespace(Popen=Puppet, **kept))
    monkeypatch.setattr(children, "_ENDS_S", 0.01)
    found = WorkerProcess(StrategyJob(EAGER), {}, quiet=True)
    yield found, found._child._popen  # type: ignore[misc]
    found.close()


def test_replies_in_one_packet_are_read_one_by_one(
    pair: tuple[WorkerProcess, Puppet],
) -> None:
    worker, child = pair
    worker.tell("import_torch")
    worker.tell("switches")
    child.says(*(ANSWER % number for number in range(3)))
    assert worker.ask(Facts, "warm_up", 60.0).pass_ms == 2


def test_half_a_reply_of_an_ended_process_is_an_error(
    pair: tuple[WorkerProcess, Puppet],
) -> None:
    worker, child = pair
    child.says(b'{"reply": {')
    child.hangs_up()
    child.lives = False
    with pytest.raises(WorkerError, match="exit code 3"):
        worker.ask(Facts, "warm_up", 5.0)


def test_late_process_is_ended(
    pair: tuple[WorkerProcess, Puppet],
) -> None:
    worker, _ = pair
    with pytest.raises(WorkerError, match=r"\b0 s\b"):
        worker.ask(Facts, "warm_up", 0.01)
    with pytest.raises(WorkerError, match="closed"):
        worker.ask(Facts, "warm_up", 0.01)


def test_closed_session_starts_no_process() -> None:
    family = WorkerProcesses(quiet=True)
    family.close()
    with pytest.raises(WorkerError, match="has ended"):
        family.begin({}, {})
