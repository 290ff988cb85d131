"""Whether what a pack holds may be run here."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchproof.runtime.pack_format import keys, permissions
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.refusal import Refused

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def assert_trusted(contents: Contents, key: bytes | None = None) -> None:
    """Refuses a pack that someone else could have made or changed, or that is damaged.

    With a key its signature decides, whoever owns it; without, its owner and the modes
    of all it consists of and lies in. Then every file is hashed.
    """
    try:
        assert_origin(contents, key)
        for why in contents.damage().values():
            raise Refused(f"{why}: make it again, or copy it again")
    except Refused as error:
        raise Refused(f"{contents.path} is refused: {error}") from None


def assert_origin(contents: Contents, key: bytes | None = None) -> None:
    """Refuses what someone else could have made or changed; its files are not read."""
    if key is None:
        _assert_ours(contents)
    else:
        _assert_signed(contents, key)


def _assert_signed(contents: Contents, key: bytes) -> None:
    if contents.signature is None:
        raise Refused("a key is given and it is not signed: pack it again with --key")
    if not keys.fits(key, contents.manifest_bytes, contents.signature):
        raise Refused("its signature does not fit the key: another key made it")


def _assert_ours(contents: Contents) -> None:
    for path, status in contents.owned():
        if status.st_uid not in (os.geteuid(), 0):
            raise Refused(
                f"{path} belongs to user {status.st_uid}, and loading runs code: make"
                " it yourself, or load it with the key that signed it"
            )
        if status.st_mode & _OTHERS_WRITE:
            raise Refused(f"others can write {path}: chmod -R go-w {contents.path}")
    for folder in contents.path.resolve().parents:
        _assert_closed(folder)


def _assert_closed(folder: Path) -> None:
    """Who writes in a folder can exchange what lies there, unless it is sticky.

    Its owner can too, but only for something that is this user's or root's as well.
    """
    if permissions.others_write(folder) and not folder.stat().st_mode & stat.S_ISVTX:
        raise Refused(
            f"others can write in {folder}, where it lies: chmod go-w {folder}, or load"
            " it with the key that signed it"
        )
