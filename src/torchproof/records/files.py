"""Opens files that a user names, so that no path can block or read forever.

A path may name a FIFO, a device, a socket or a file of any size. Every function here
accepts regular files only, follows symbolic links, and raises `OSError` with a
`strerror` that says what is wrong; a name that no file can have is an `OSError` too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS: dict[str, Callable[[int], bool]] = {
    "a directory": stat.S_ISDIR,
    "a FIFO": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a character device": stat.S_ISCHR,
    "a block device": stat.S_ISBLK,
}

_PIECE = 1 << 20

AnyPath = str | os.PathLike[str]
# The largest Python source; files that people write have less than a tenth of it.
MOST_SOURCE_BYTES = 8 << 20


def open_regular(path: AnyPath, limit: int | None = None) -> BinaryIO:
    """A regular file, open for reading; with `limit`, of at most that many bytes."""
    try:
        # Opening a device can act on it, so its kind is checked before and after.
        _assert_regular(os.stat(path), limit)
        handle = os.open(path, _FLAGS)
    except ValueError:
        raise _nul() from None
    try:
        _assert_regular(os.fstat(handle), limit)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: AnyPath, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    content = bytearray()
    with open_regular(path, limit) as file:
        # In pieces: `read(n)` allocates n bytes, however few the file has.
        while len(content) <= limit and (piece := file.read(_PIECE)):
            content += piece
    if len(content) > limit:  # it grew, or is in /proc, where files have no size
        raise _too_large(limit)
    return bytes(content)


def _assert_regular(status: os.stat_result, limit: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = (name for name, is_one in _KINDS.items() if is_one(status.st_mode))
        kind = next(kinds, "a special file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")
    if limit is not None and status.st_size > limit:
        raise _too_large(limit)


def _nul() -> OSError:
    return OSError(errno.EINVAL, "the name contains a NUL character")


def _too_large(limit: int) -> OSError:
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    return OSError(errno.EFBIG, f"it is larger than {size}")


def is_taken(path: AnyPath) -> bool:
    """Whether the path exists, including a broken link."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:
        raise _nul() from None
    return True
