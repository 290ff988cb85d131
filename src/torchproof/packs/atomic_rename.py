"""Renames a finished pack to its destination atomically."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

from torchproof.records import UserError

ASIDE = "replaced"  # the temporary name of an old pack
_HERE = -100  # AT_FDCWD of <fcntl.h>
_NO_REPLACE, _EXCHANGE = 1, 2  # RENAME_* of <linux/fs.h>
# The errors of file systems that do not support these flags.
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def place(source: Path, dest: Path, overwrite: bool) -> None:
    """Rename `source` to `dest`; an existing pack is replaced only with `overwrite`."""
    dest = dest.absolute()
    try:
        if not (overwrite and _replaced(source, dest)):
            _named(source, dest)
    except FileExistsError:
        raise UserError(
            f"another process has created {dest} meanwhile: choose another name for -o,"
            " or replace it with --overwrite"
        ) from None
    _sync(dest.parent)


def _replaced(source: Path, dest: Path) -> bool:
    """Replace what exists at `dest`; False if nothing exists."""
    if not os.path.lexists(dest):
        return False
    if not source.is_dir() and not dest.is_dir():
        os.replace(source, dest)
        return True
    try:
        _rename(source, dest, _EXCHANGE)
        return True  # the old pack is now in the work directory and deleted with it
    except FileNotFoundError:  # another process deleted it meanwhile
        return False
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
    aside = source.parent / ASIDE
    os.rename(dest, aside)
    try:
        _named(source, dest)
    except BaseException:
        os.rename(aside, dest)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _named(source: Path, dest: Path) -> None:
    try:
        _rename(source, dest, _NO_REPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        if source.is_dir():
            _named_folder(source, dest)
        else:
            os.link(source, dest)


def _named_folder(source: Path, dest: Path) -> None:
    """Without renameat2: an empty directory reserves the name for the real one."""
    os.mkdir(dest)
    try:
        os.rename(source, dest)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError from None
        raise


def _rename(old: Path, new: Path, flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):  # a C library from before 2018
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    done = library.renameat2(_HERE, os.fsencode(old), _HERE, os.fsencode(new), flags)
    if done:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(new))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
