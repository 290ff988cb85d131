"""A stand-in for the children that torchproof starts: forked where torch is loaded.

`import torch` is paid for once in a test run, not once in each child. They are those a
user gets otherwise, except that nothing that is read while torch is imported
(TORCH_LOGS, TORCH_TRACE) can be given to them, and a script finds torch imported.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, ClassVar

import forked_commands
import pytest

from torchproof.process import children


class Forked:
    """Stands in for `subprocess.Popen` of `python -m MODULE ...`."""

    begun: ClassVar[list[int]] = []  # process ids

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Any = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        **settings: Any,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["warm_torch"])
        streams = {number: Connection(os.dup(number)) for number in pass_fds}
        for number, stream in enumerate((stdin, stdout, stderr)):
            streams[number] = Connection(forked_commands.descriptor(number, stream))
        place = str(cwd or os.getcwd())
        self._process = context.Process(
            target=_serve, args=(list(command), place, dict(env), streams)
        )
        self._process.start()
        for connection in streams.values():
            connection.close()
        self._asking = threading.Lock()  # its exit code can be read once
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.begun.append(self.pid)

    def poll(self) -> int | None:
        with self._asking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        with self._asking:
            self._process.join(timeout)
            code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("child", timeout or 0.0)
        return code


def _serve(
    command: list[str], cwd: str, env: dict[str, str], streams: dict[int, Connection]
) -> None:
    os.chdir(cwd)
    forked_commands.connect({n: each.fileno() for n, each in streams.items()})
    forked_commands.end(lambda: forked_commands.become(command, env))


@contextmanager
def forked() -> Iterator[None]:
    """Children that start meanwhile are forked, if they run a module."""
    names = ("PIPE", "DEVNULL", "run", "TimeoutExpired")
    kept = {name: getattr(subprocess, name) for name in names}

    def popen(command: Sequence[str], **settings: Any) -> Any:
        kind = Forked if "-m" in command else subprocess.Popen
        return kind(command, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "subprocess", SimpleNamespace(Popen=popen, **kept))
        yield
