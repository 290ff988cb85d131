"""A process that imports once, and forks a child for each job.

The parent makes a `ForkServer` and submits jobs. The server's program imports what its
jobs need, then calls `serve(run)`: each job is a message, `run(job)` is called in a
fork, and its result is the exit code. What the parent prepares is done in the server.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NoReturn

from torchproof.process import parent_death
from torchproof.process.channel import Channel, Ended, Message
from torchproof.process.children import Child
from torchproof.process.trees import kill_tree

_POLL_S = 0.01
_IDLE_S = 3600.0
_ENDS_S = 2.0


@dataclass(frozen=True)
class JobEnding:
    """The exit code of a job: negative for a signal, None if it reached its limit."""

    code: int | None
    seconds: float


class ForkServer:
    """The parent's side of a fork server; `child` is a process that calls `serve`."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._waiting: dict[int, Future[JobEnding]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def submit(self, job: Message, limit_s: float) -> Future[JobEnding]:
        """Runs a job, together with others; kills it with its tree at the limit.

        If the server itself ends, the job counts as killed.
        """
        future: Future[JobEnding] = Future()
        with self._lock:
            self._count += 1
            number = self._count
            self._waiting[number] = future
        try:
            self._child.channel.send({"number": number, "limit_s": limit_s, "job": job})
        except Ended:
            self._fail_all()
        return future

    def prepare(self, message: Message) -> None:
        """Lets the server itself do something before it takes the next job."""
        with contextlib.suppress(Ended), self._lock:
            self._child.channel.send({"prepare": message})

    def _read(self) -> None:
        with contextlib.suppress(Ended):
            while True:
                reply = self._child.receive()
                with self._lock:
                    future = self._waiting.pop(reply["number"])
                future.set_result(JobEnding(reply["code"], reply["seconds"]))
        self._fail_all()

    def _fail_all(self) -> None:
        with self._lock:
            pending, self._waiting = self._waiting, {}
        for future in pending.values():
            future.set_result(JobEnding(-9, 0.0))

    def close(self) -> None:
        """Ends the server and all jobs."""
        self._child.kill()
        self._reader.join(_ENDS_S)


# -- the server ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Running:
    number: int
    start: float
    limit_s: float


def serve(
    run: Callable[[Message], int], prepare: Callable[[Message], None] | None = None
) -> None:
    """Serves until the parent closes the channel, then kills all jobs.

    A fork is in a session of its own and has no channel; `run` sets up its streams,
    directory and variables.
    """
    channel = Channel.to_parent()
    running: dict[int, _Running] = {}
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                job = channel.receive(_POLL_S if running else _IDLE_S)
                if prepare is not None and "prepare" in job:
                    prepare(job["prepare"])
                    continue
                start = time.monotonic()
                pid = _fork(channel, run, job["job"])
                running[pid] = _Running(job["number"], start, job["limit_s"])
            for pid, code in _ended(running):
                ended = running.pop(pid)
                seconds = time.monotonic() - ended.start
                channel.send({"number": ended.number, "code": code, "seconds": seconds})
    except Ended:
        return
    finally:
        for pid in running:
            kill_tree(pid)


def _ended(running: Mapping[int, _Running]) -> list[tuple[int, int | None]]:
    endings: list[tuple[int, int | None]] = []
    for pid, job in running.items():
        if time.monotonic() - job.start > job.limit_s:
            kill_tree(pid)
            os.waitpid(pid, 0)
            endings.append((pid, None))
            continue
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            kill_tree(pid)  # what it left behind in its session
            endings.append((pid, os.waitstatus_to_exitcode(status)))
    return endings


def _fork(channel: Channel, run: Callable[[Message], int], job: Message) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        parent_death.kill_with_parent()
        if os.getppid() != server:
            os._exit(1)
        channel.close()
        code = run(job)
    except BaseException:
        traceback.print_exc()
    finally:
        _exit(code)


def _exit(code: int) -> NoReturn:
    """Exits without exit handlers, which belong to the server."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
