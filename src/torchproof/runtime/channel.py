"""Messages between a process and its child over a socket.

`read` and `write` wait in short slices. They call `tick` before each slice; it ends the
wait by raising.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

SLICE_S = 0.1
IDLE_EXIT = 83  # the exit code of a child that got no request for a while
_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20

Tick = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """A request to generate code."""

    payload: bytes
    environment: dict[str, str]  # the variables that name torch's cache folders
    seconds_left: float


@dataclass(frozen=True)
class Answer:
    """The generated code, or the error."""

    output: bytes | None
    error: str = ""


def write(channel: socket.socket, message: bytes, tick: Tick) -> None:
    """Sends a message; raises OSError if the other side has ended."""
    rest = memoryview(_LENGTH.pack(len(message)) + message)
    channel.settimeout(SLICE_S)
    while rest:
        tick()
        try:
            rest = rest[channel.send(rest) :]
        except TimeoutError:
            continue


def read(channel: socket.socket, tick: Tick) -> bytes:
    """Receives a message; raises EOFError or OSError if the other side has ended."""
    channel.settimeout(SLICE_S)
    (length,) = _LENGTH.unpack(_read_exactly(channel, _LENGTH.size, tick))
    return _read_exactly(channel, length, tick)


def _read_exactly(channel: socket.socket, length: int, tick: Tick) -> bytes:
    read = bytearray()
    while len(read) < length:
        tick()
        try:
            chunk = channel.recv(min(length - len(read), _CHUNK_BYTES))
        except TimeoutError:
            continue
        if not chunk:
            raise EOFError("the other side has closed the channel")
        read += chunk
    return bytes(read)
