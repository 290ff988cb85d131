"""Starts a Python process that ends with this one, and talks to it.

    with spawn("-m", "package.worker", environment={"A": "1"}) as child:
        answer = child.ask({"do": "measure"}, timeout_s=60.0)

In the child:

    hold()
    channel = Channel.to_parent()
    while True:
        channel.send(answer(channel.receive()))
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from torchproof.process import parent_death
from torchproof.process.channel import VARIABLE, Channel, Ended, Message, Tick, nothing
from torchproof.process.trees import MARK_VARIABLE, kill_tree

# "low" gets about a tenth of a CPU that others want, "idle" next to nothing of it. A
# process cannot raise its priority again.
Priority = Literal["same", "low", "idle"]

DEVNULL = subprocess.DEVNULL
_NICENESS = 10
_ENDS_S = 5.0  # to exit after it closed its channel; a thread may prevent that


class Child:
    """A child process; `channel` is this end of the channel to it."""

    def __init__(
        self, popen: subprocess.Popen[bytes], channel: Channel, mark: str
    ) -> None:
        self._popen = popen
        self._is_killed = False
        self.channel = channel
        self.mark = mark
        self.pid = popen.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def lower_priority(self, priority: Priority) -> None:
        """Lets this process have the CPUs first; what the child starts inherits it.

        On few CPUs, niceness is not enough. The kernel moves a nice process aside at
        its next tick only, and a parallel operation waits for its slowest thread: on
        four CPUs beside one busy process, 40 products of matrices took 636 ms with any
        niceness of that process, 79 ms if it was idle, and 76 ms without it.
        """
        if priority == "same":
            return
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self.pid, niceness)
            if priority == "idle":
                os.sched_setscheduler(self.pid, os.SCHED_IDLE, os.sched_param(0))
        # Where the kernel shares CPUs among sessions first, niceness means nothing
        # beyond the child's own session: that has one, too.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/autogroup").write_text(str(niceness))

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the child runs."""
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, once the child has ended; raises `TimeoutError`."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def ask(
        self,
        message: Message,
        timeout_s: float | None = None,
        tick: Tick = nothing,
    ) -> Message:
        """Sends a message and returns the next one of the child."""
        with contextlib.suppress(Ended):  # `receive` says how it ended
            self.channel.send(message, tick)
        return self.receive(timeout_s, tick)

    def receive(self, timeout_s: float | None = None, tick: Tick = nothing) -> Message:
        """As `Channel.receive`; `Ended` also if a descendant keeps the socket open."""

        def check() -> None:
            tick()
            if self._popen.poll() is not None:
                raise Ended

        try:
            return self.channel.receive(timeout_s, check)
        except Ended:
            return self._last_message()

    def _last_message(self) -> Message:
        """What the child sent before it ended; `Ended` says how, if it sent nothing."""
        try:
            return self.channel.receive(0.0)
        except (Ended, TimeoutError):
            raise Ended(self.ending()) from None

    def ending(self) -> str:
        """How the child ended: `killed by SIGKILL`, `ended with exit code 3`."""
        if self._is_killed:
            return "was closed"
        try:
            return describe(self.wait(_ENDS_S))
        except TimeoutError:
            return "stopped answering"

    def kill(self) -> None:
        """Kills the child and everything it started, and closes the channel."""
        if not self._is_killed:
            self._is_killed = True
            pid = self.pid if self._popen.poll() is None else None
            kill_tree(pid, self.mark)
            self._popen.wait()
            kill_tree(None, self.mark)  # what it started in its last moments
            self.channel.close()


def describe(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def spawn(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    inherit: bool = True,
    cwd: Path | None = None,
    stdin: int | None = DEVNULL,
    output: int | IO[Any] | None = None,
    layout: int | None = None,
    keep: Sequence[int] = (),
    watches_parent: bool = False,
) -> Child:
    """Starts `python ARGUMENTS` in a session of its own.

    The `environment` is added to this process's variables, unless `inherit` is False.
    `output` receives stdout and stderr: by default this process's stderr. None as
    `stdin` passes on this process's. `layout` is a number of `aslr`, for a child that
    starts with `-m`; its imports do not search the working directory. `keep` lists file
    descriptors that the child inherits. A child that `watches_parent` by itself, with
    `hold(descendants=True)`, needs no thread of this process for that.
    """
    near, far = socket.socketpair()
    # The mark of a child of a child begins with the mark of its parent.
    mark = os.environ.get(MARK_VARIABLE, "") + uuid.uuid4().hex
    variables = {
        **(os.environ if inherit else {}),
        **(environment or {}),
        **parent_death.parent(),
        MARK_VARIABLE: mark,
        VARIABLE: str(far.fileno()),
    }
    command = [sys.executable, *arguments]
    if arguments[0] == "-m":
        # A module of the working directory must not replace one that the child needs.
        command.insert(1, "-P")
    if layout is not None:
        # Runpy warns that the package has already imported the module.
        quiet = ["-W", "ignore::RuntimeWarning:runpy"]
        command[2:3] = [*quiet, "-m", "torchproof.process.aslr", str(layout)]

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=variables,
            stdin=stdin,
            stdout=sys.stderr if output is None else output,
            stderr=output,
            pass_fds=(far.fileno(), *keep),
            start_new_session=True,
        )

    with far:
        popen = begin() if watches_parent else parent_death.begun(begin)
    return Child(popen, Channel(near), mark)
