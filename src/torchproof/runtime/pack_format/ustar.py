"""A strict reader of tar archives that accepts only regular files and folders.

Archives come from strangers, and `tarfile` trusts them too much: it reads headers that
ask for gigabytes of memory, follows links, and guesses where an archive is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torchproof.runtime.pack_format.refusal import Refused

_BLOCK = 512
_PIECE = 2**20
_PADDING = 2**16  # zero bytes after the last entry; tar writes up to 10 KiB
_TYPES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
}
_LONG_NAMES = (
    b"L",
    b"K",
    b"x",
    b"g",
)  # GNU and POSIX extensions, as `tar czf` writes them


class Stream(Protocol):
    """An object with `read`."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Entry:
    """One entry of an archive; the size of a folder is 0."""

    name: str
    size: int
    is_folder: bool


def entries(
    stream: Stream, most_bytes: Callable[[Entry], int]
) -> Iterator[tuple[Entry, bytes]]:
    """Yields each entry with its bytes.

    Raises `Refused` before it reads an entry larger than `most_bytes(entry)`.
    """
    while any(header := _exactly(stream, _BLOCK)):
        entry = _entry(header)
        if entry.size > most_bytes(entry):
            raise Refused(f"{entry.name!r} in it has more bytes than the manifest says")
        content = _exactly(stream, entry.size)
        if any(_exactly(stream, -entry.size % _BLOCK)):
            raise Refused(f"it has data after the end of {entry.name!r}")
        yield entry, content
    padding = 0
    while piece := stream.read(_BLOCK):
        padding += len(piece)
        if any(piece) or padding > _PADDING:
            raise Refused("it has data after its last file")


def _exactly(stream: Stream, size: int) -> bytes:
    """Reads in pieces, so that a false size allocates no memory."""
    pieces = []
    remaining = size
    while remaining:
        piece = stream.read(min(remaining, _PIECE))
        if not piece:
            raise EOFError
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def _entry(header: bytes) -> Entry:
    summed = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if summed != _number(header[148:156]):
        raise Refused("it is damaged: the checksum of a header does not match")
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        name = f"{_text(header[345:500])}/{name}"
    kind = header[156:157]
    if kind in _LONG_NAMES:
        raise Refused(
            "it uses tar's extension for long names: unpack it and use the folder"
        )
    if kind not in (b"0", b"\0", b"5"):
        type_name = _TYPES.get(kind, f"an entry of type {kind!r}")
        raise Refused(
            f"{name!r} in it is {type_name}; a pack contains only regular files"
        )
    size = _number(header[124:136])
    if kind == b"5" and size:
        raise Refused(f"{name!r} in it is a folder with a size")
    return Entry(name, size, kind == b"5")


def _text(field: bytes) -> str:
    try:
        return field.partition(b"\0")[0].decode()
    except UnicodeDecodeError:
        raise Refused(f"{field!r} in it is not a valid file name") from None


def _number(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        raise Refused("it is damaged: a number in a header is not octal")
    return int(digits, 8)
