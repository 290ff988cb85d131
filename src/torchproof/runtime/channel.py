"""Messages between a process and its child, over a socket that is waited on in slices.

`tick` is called before each wait, and ends it by raising.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

SLICE_S = 0.1
IDLE_EXIT = 83  # the exit code of a child that had nothing to do
_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20

Tick = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """Code to generate."""

    payload: bytes
    environment: dict[str, str]  # of the variables that name caches, those that are set
    seconds_left: float


@dataclass(frozen=True)
class Answer:
    """What was generated, or what was raised."""

    output: bytes | None
    error: str = ""


def write(channel: socket.socket, message: bytes, tick: Tick) -> None:
    """Raises OSError where the other side is gone."""
    rest = memoryview(_LENGTH.pack(len(message)) + message)
    channel.settimeout(SLICE_S)
    while rest:
        tick()
        try:
            rest = rest[channel.send(rest) :]
        except TimeoutError:
            continue


def read(channel: socket.socket, tick: Tick) -> bytes:
    """Raises EOFError or OSError where the other side is gone."""
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
