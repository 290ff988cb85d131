"""Decides whether the code in a pack may run in this process."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from torchproof.runtime.pack_format import keys
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ACL_ATTRIBUTE = "system.posix_acl_access"


def assert_trusted(contents: Contents, key: bytes | None = None) -> None:
    """Raises `Refused` if the pack is damaged, or another user could have written it.

    With a public key, the signature decides, whoever owns the pack. Without a key, the
    owner and the modes of the pack, its files and its parent folders decide. Then every
    file is hashed.
    """
    try:
        assert_origin(contents, key)
        for why in contents.damage().values():
            raise Refused(f"{why}: build the pack again, or copy it again")
    except (Refused, OSError) as error:  # a file may be gone meanwhile
        raise Refused(f"{contents.path} is refused: {error}") from None


def assert_origin(contents: Contents, key: bytes | None = None) -> None:
    """Raises `Refused` if another user could have written the pack; reads no file."""
    if key is not None:
        keys.assert_signed(key, contents.manifest_bytes, contents.signature)
        return
    for path in contents.owned:
        status = path.lstat()
        if status.st_uid not in (os.geteuid(), 0):
            raise Refused(
                f"{path} belongs to user {status.st_uid}, and loading a pack runs its"
                " code: build the pack yourself, or load it with the key that signed it"
            )
        if status.st_mode & _OTHERS_WRITE:
            raise Refused(
                f"other users can write to {path}: chmod -R go-w {contents.path}"
            )
    for folder in contents.owned[0].parents:
        _assert_closed(folder)


def _assert_closed(folder: Path) -> None:
    """Raises `Refused` if other users can write to the folder and it is not sticky.

    They could replace the pack. The folder's owner could, too, but the replacement
    would not belong to this user or root.
    """
    if others_write(folder) and not folder.stat().st_mode & stat.S_ISVTX:
        raise Refused(
            f"other users can write to {folder}, which contains it: chmod go-w"
            f" {folder}, or load it with the key that signed it"
        )


def others_write(folder: Path) -> bool:
    """Whether any user except this one and root can write to the folder.

    A group-writable folder is safe if the group is the private group of this user.
    """
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    return _has_acl(folder) or not _is_private_group(status.st_gid)


def _has_acl(folder: Path) -> bool:
    """Whether the folder has a POSIX ACL, which the mode shows as group bits."""
    try:
        return _ACL_ATTRIBUTE in os.listxattr(folder)
    except OSError:  # the file system has no extended attributes
        return False


def _is_private_group(group: int) -> bool:
    """Whether the group is private to this user.

    The names are compared too, because `getpwall` does not list every account.
    """
    if os.geteuid() == 0:  # in containers, many users share root's group
        return False
    try:
        user = pwd.getpwuid(os.geteuid())
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    if group != user.pw_gid or entry.gr_name != user.pw_name:
        return False
    return set(entry.gr_mem) <= {user.pw_name} and not any(
        each.pw_gid == group and each.pw_uid != user.pw_uid for each in pwd.getpwall()
    )
