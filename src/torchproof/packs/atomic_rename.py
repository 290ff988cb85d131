"""Gives what was made its name, in one step that is done or not done."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

from torchproof.records import UserError

ASIDE = "replaced"  # where an old pack lies for a moment
_HERE = -100  # AT_FDCWD of <fcntl.h>
_NO_REPLACE, _EXCHANGE = 1, 2  # RENAME_* of <linux/fs.h>
# What file systems answer that know no such renaming.
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def place(made: Path, dest: Path, overwrite: bool) -> None:
    """Renames `made` to `dest`; what is there is replaced only if asked for."""
    dest = dest.absolute()
    try:
        if not (overwrite and _replaced(made, dest)):
            _named(made, dest)
    except FileExistsError:
        raise UserError(
            f"{dest} was made by another process meanwhile: choose another name for -o,"
            " or replace it with --overwrite"
        ) from None
    _sync(dest.parent)


def _replaced(made: Path, dest: Path) -> bool:
    """Whether there was something to replace, and it is."""
    if not os.path.lexists(dest):
        return False
    if not made.is_dir() and not dest.is_dir():
        os.replace(made, dest)
        return True
    try:
        _rename(made, dest, _EXCHANGE)
        return True  # the old one is in the work folder, and goes with it
    except FileNotFoundError:  # someone removed it meanwhile
        return False
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
    aside = made.parent / ASIDE
    os.rename(dest, aside)
    try:
        _named(made, dest)
    except BaseException:
        os.rename(aside, dest)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _named(made: Path, dest: Path) -> None:
    try:
        _rename(made, dest, _NO_REPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        if made.is_dir():
            _named_folder(made, dest)
        else:
            os.link(made, dest)


def _named_folder(made: Path, dest: Path) -> None:
    """Without the kernel's help: an empty folder holds the name for the real one."""
    os.mkdir(dest)
    try:
        os.rename(made, dest)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError from None
        raise


def _rename(old: Path, new: Path, flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):  # a C library of before 2018
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
