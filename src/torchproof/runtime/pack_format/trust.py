"""Decides whether the code in a pack may run in this process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchproof.runtime.pack_format import keys, permissions
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.refusal import Refused

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def assert_trusted(contents: Contents, key: bytes | None = None) -> None:
    """Raises `Refused` if the pack is damaged, or another user could have written it.

    With a key, the signature decides, whoever owns the pack. Without a key, the owner
    and the modes of the pack, its files and its parent folders decide. Then every file
    is hashed.
    """
    try:
        assert_origin(contents, key)
        for why in contents.damage().values():
            raise Refused(f"{why}: build the pack again, or copy it again")
    except Refused as error:
        raise Refused(f"{contents.path} is refused: {error}") from None


def assert_origin(contents: Contents, key: bytes | None = None) -> None:
    """Raises `Refused` if another user could have written the pack; reads no file."""
    if key is None:
        _assert_owned(contents)
    else:
        _assert_signed(contents, key)


def _assert_signed(contents: Contents, key: bytes) -> None:
    if contents.signature is None:
        raise Refused("it is not signed, but a key was given: pack it again with --key")
    if not keys.fits(key, contents.manifest_bytes, contents.signature):
        raise Refused(
            "its signature does not fit the key: it was signed with another key"
        )


def _assert_owned(contents: Contents) -> None:
    for path, status in contents.owned():
        if status.st_uid not in (os.geteuid(), 0):
            raise Refused(
                f"{path} belongs to user {status.st_uid}, and loading a pack runs its"
                " code: build the pack yourself, or load it with the key that signed it"
            )
        if status.st_mode & _OTHERS_WRITE:
            raise Refused(
                f"other users can write to {path}: chmod -R go-w {contents.path}"
            )
    for folder in contents.path.resolve().parents:
        _assert_closed(folder)


def _assert_closed(folder: Path) -> None:
    """Raises `Refused` if other users can write to the folder and it is not sticky.

    They could replace the pack. The folder's owner could, too, but the replacement
    would not belong to this user or root.
    """
    if permissions.others_write(folder) and not folder.stat().st_mode & stat.S_ISVTX:
        raise Refused(
            f"other users can write to {folder}, which contains it: chmod go-w"
            f" {folder}, or load it with the key that signed it"
        )
