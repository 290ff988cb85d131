"""Messages between a process and its child: JSON lines in both directions.

A `Channel` is one end of a socket. `spawn` makes both ends: the parent has
`child.channel`, the child calls `Channel.to_parent()`. Binary data travels as base64
text in a field (`packed`, `unpacked`), or in a file whose path is sent.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "TORCHPROOF_CHANNEL"
SLICE_S = 0.1
_CHUNK_BYTES = 1 << 20

Message = dict[str, Any]
Tick = Callable[[], None]


class Ended(Exception):
    """The other process has ended, or has closed its end."""


class Garbled(Exception):
    """A line is not a JSON object. The next `receive` reads the line after it."""


def nothing() -> None:
    """The default `tick`."""


class Channel:
    """One end of the socket. Any thread may send; one at a time may receive.

    Both methods wait in slices of 0.1 s and call `tick` before each one, which ends the
    wait by raising. So a caller can be interrupted, and can have its own deadline.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.settimeout(SLICE_S)
        self._sending = threading.Lock()
        self._buffer = bytearray()  # bytes after the last line that was received
        self._identity = _identity(end.fileno())

    @classmethod
    def to_parent(cls) -> Channel:
        """The child's end; callable once in a process that `spawn` started."""
        end = socket.socket(fileno=int(os.environ.pop(VARIABLE)))
        end.set_inheritable(False)
        return cls(end)

    def send(self, message: Message, tick: Tick = nothing) -> None:
        """Sends a message; raises `Ended`."""
        rest = memoryview(json.dumps(message, default=str).encode() + b"\n")
        with self._sending:
            while rest:
                tick()
                try:
                    rest = rest[self._socket.send(rest) :]
                except TimeoutError:
                    continue
                except OSError as error:
                    raise Ended(str(error)) from None

    def receive(self, timeout_s: float | None = None, tick: Tick = nothing) -> Message:
        """The next message; raises `TimeoutError`, `Ended` or `Garbled`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            tick()
            self._read(until)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return _decoded(line)

    def _read(self, until: float | None) -> None:
        left_s = SLICE_S if until is None else until - time.monotonic()
        try:
            self._socket.settimeout(min(SLICE_S, max(left_s, 0.001)))
            chunk = self._socket.recv(_CHUNK_BYTES)
        except TimeoutError:
            if until is not None and time.monotonic() >= until:
                raise
            return
        except OSError as error:  # reset by the other end, or closed by a thread
            raise Ended(str(error)) from None
        if not chunk:
            raise Ended("the other end is closed")
        self._buffer += chunk

    def is_open(self) -> bool:
        """Whether the socket is still this one: its number may be of another file."""
        return _identity(self._socket.fileno()) == self._identity

    def close(self) -> None:
        self._socket.close()


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _decoded(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise Garbled("not JSON") from None
    if not isinstance(message, dict):
        raise Garbled("not a JSON object")
    return message


def packed(data: bytes) -> str:
    """Bytes as the text of a field."""
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    return base64.b64decode(text)
