"""Starts the process of a worker, and sends it commands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NoReturn

from torchproof.measure.replies import Reply
from torchproof.process import DEVNULL, Ended, Garbled, Message, Tick, spawn
from torchproof.records import RaisedError, Record, UserError
from torchproof.strategies import NotApplicable

STRATEGY_WORKER = "torchproof.measure.strategy_worker"
# With remote caches, a start that is labelled cold could be warm.
NO_REMOTE_CACHES = {
    f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "0"
    for name in ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE", "BUNDLED_AUTOTUNE")
}


class WorkerError(Exception):
    """A worker failed; the message is one line."""

    def __init__(self, message: str, raised: RaisedError | None = None) -> None:
        super().__init__(message)
        self.raised = raised


class WorkerTimeout(WorkerError):
    """A worker did not answer in time, and was ended."""


def nothing() -> None:
    """What happens while nothing is to be done between two waits."""


def _raise_error(answer: Message) -> NoReturn:
    """Raises the error that a worker replied."""
    if answer.get("skips"):
        raise NotApplicable(answer["error"])
    if answer["usage"]:
        raise UserError(answer["error"], details=answer.get("details", ""))
    raised = answer.get("raised")
    raise WorkerError(
        answer["error"], None if raised is None else RaisedError.from_json(raised)
    )


class WorkerInterface(ABC):
    """A worker that runs commands: a process, or a group of them on several ranks."""

    @abstractmethod
    def tell(self, do: str, **values: Any) -> None:
        """Sends a command and does not wait for its reply."""

    @abstractmethod
    def wait(self, limit_s: float | None, tick: Tick = nothing) -> Message:
        """Waits for the replies to all commands, with `tick` meanwhile; the last."""

    @abstractmethod
    def close(self) -> None:
        """Kills its processes and everything they started."""

    def ask(
        self, kind: type[Reply], do: str, limit_s: float | None, **values: Any
    ) -> Reply:
        """Sends a command and returns its reply; raises `WorkerError` on failure."""
        self.tell(do, **values)
        return self.reply(kind, limit_s)

    def reply(
        self, kind: type[Reply], limit_s: float | None, tick: Tick = nothing
    ) -> Reply:
        """Waits for the reply to the last command."""
        answer = self.wait(limit_s, tick)
        if "error" in answer:
            _raise_error(answer)
        return self.read(kind, answer)

    def read(self, kind: type[Reply], answer: Message) -> Reply:
        """The record in an answer."""
        return kind.from_json(answer["reply"])


class WorkerProcess(WorkerInterface):
    """A worker in a child process. It handles one command at a time."""

    def __init__(
        self,
        job: Record,
        environment: Mapping[str, str],
        *,
        quiet: bool,
        layout: int = 0,
        module: str = STRATEGY_WORKER,
    ) -> None:
        self._child = spawn(
            "-m",
            module,
            json.dumps(job.to_json()),
            environment={**NO_REMOTE_CACHES, **environment},
            output=DEVNULL if quiet else None,
            layout=layout,
        )
        self._unread = 0  # replies that nobody has read
        self._last: Message = {}  # reply that was read

    def tell(self, do: str, **values: Any) -> None:
        with contextlib.suppress(Ended):  # the next `ask` reports it
            self._child.channel.send({"do": do, **values})
        self._unread += 1

    def wait(self, limit_s: float | None, tick: Tick = nothing) -> Message:
        while self._unread:
            self._last = self._read(limit_s, tick)
            self._unread -= 1
        return self._last

    def poll(self, seconds: float) -> Message | None:
        """The reply to the last command; None if it takes longer than this."""
        while self._unread:
            try:
                self._last = self._received(seconds, nothing)
            except TimeoutError:
                return None
            self._unread -= 1
        return self._last

    def _read(self, limit_s: float | None, tick: Tick) -> Message:
        try:
            return self._received(limit_s, tick)
        except TimeoutError:
            self.close()
            raise WorkerTimeout(
                f"no answer within {limit_s:.0f} s (--timeout)"
            ) from None

    def _received(self, limit_s: float | None, tick: Tick) -> Message:
        try:
            return self._child.receive(limit_s, tick)
        except Garbled:
            why = "its process sent a reply that is not JSON"
        except Ended as ending:
            why = f"its process {ending}"
        self.close()
        raise WorkerError(why)

    def close(self) -> None:
        self._child.kill()


def free_vram() -> int | None:
    """The free bytes of the first visible GPU; None if the driver does not say."""
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if first := os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip():
        query += ["-i", first]
    try:
        answer = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=20
        )
        return int(answer.stdout.split()[0]) * 2**20
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
