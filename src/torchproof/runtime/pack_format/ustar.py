"""A strict reader of tar archives: plain files and folders, nothing else.

`tarfile` reads headers that ask for gigabytes of memory, follows links, and guesses
where an archive is damaged; what is read here comes from people one does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torchproof.runtime.pack_format.refusal import Refused

_BLOCK = 512
_PIECE = 2**20
_PADDING = 2**16  # of zeros after the last entry; tar itself writes up to 10 KiB
_TYPES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
}
_LONG_NAMES = (b"L", b"K", b"x", b"g")  # of GNU and of POSIX; what `tar czf` writes


class Stream(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Entry:
    """One entry of an archive; a folder has no bytes."""

    name: str
    size: int
    is_folder: bool


def entries(
    stream: Stream, most_bytes: Callable[[Entry], int]
) -> Iterator[tuple[Entry, bytes]]:
    """Each entry with its bytes; one larger than `most_bytes(entry)` is not read."""
    while any(header := _exactly(stream, _BLOCK)):
        entry = _entry(header)
        if entry.size > most_bytes(entry):
            raise Refused(f"{entry.name!r} in it has more bytes than its manifest says")
        held = _exactly(stream, entry.size)
        if any(_exactly(stream, -entry.size % _BLOCK)):
            raise Refused(f"there is something behind {entry.name!r} in it")
        yield entry, held
    padding = 0
    while piece := stream.read(_BLOCK):
        padding += len(piece)
        if any(piece) or padding > _PADDING:
            raise Refused("there is something behind its last file")


def _exactly(stream: Stream, size: int) -> bytes:
    """In pieces, so that a size that is a lie takes no memory."""
    pieces, left = [], size
    while left:
        piece = stream.read(min(left, _PIECE))
        if not piece:
            raise EOFError
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _entry(header: bytes) -> Entry:
    summed = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if summed != _number(header[148:156]):
        raise Refused("it is damaged: the header of a file is not what it was")
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        name = f"{_text(header[345:500])}/{name}"
    kind = header[156:157]
    if kind in _LONG_NAMES:
        raise Refused("it has names in tar's long form: unpack it, use the folder")
    if kind not in (b"0", b"\0", b"5"):
        told = _TYPES.get(kind, f"an entry of type {kind!r}")
        raise Refused(f"{name!r} in it is {told}; a pack holds plain files")
    size = _number(header[124:136])
    if kind == b"5" and size:
        raise Refused(f"{name!r} in it is a folder with bytes of its own")
    return Entry(name, size, kind == b"5")


def _text(field: bytes) -> str:
    try:
        return field.partition(b"\0")[0].decode()
    except UnicodeDecodeError:
        raise Refused(f"{field!r} in it is no plain name of a file") from None


def _number(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits or digits.strip(b"01234567"):
        raise Refused("it is damaged: the header of a file holds no number")
    return int(digits, 8)
