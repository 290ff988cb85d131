"""Checks whether other users can write to a folder."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_ACL_ATTRIBUTE = "system.posix_acl_access"


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
