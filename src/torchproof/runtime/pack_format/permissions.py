"""Who can write in a folder."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_LISTS = "system.posix_acl_access"


def others_write(folder: Path) -> bool:
    """Whether anyone but this user and root can.

    Where each user has a group of their own, folders are open to it and to no one else.
    """
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    return _has_list(folder) or not _is_own_group(status.st_gid)


def _has_list(folder: Path) -> bool:
    """Where an access list names others, the mode shows them as the group."""
    try:
        return _LISTS in os.listxattr(folder)
    except OSError:  # a file system without
        return False


def _is_own_group(group: int) -> bool:
    """Of this user alone, by name too: not every account can be listed."""
    if os.geteuid() == 0:  # root's group is that of many containers' users
        return False
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    if group != user.pw_gid or found.gr_name != user.pw_name:
        return False
    return set(found.gr_mem) <= {user.pw_name} and not any(
        each.pw_gid == group and each.pw_uid != user.pw_uid for each in pwd.getpwall()
    )
