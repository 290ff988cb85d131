"""What this machine and its environment tell about who works on it."""

from __future__ import annotations

import os
import platform
import pwd
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchproof.packs.redaction.common_words import is_switch, says_secret

_NAME_VARIABLES: tuple[str, ...] = (
    "USER",
    "LOGNAME",
    "USERNAME",
    "LNAME",
    "SUDO_USER",
    "NB_USER",
)
_NAME_VARIABLES += ("SLURM_JOB_USER", "JUPYTERHUB_USER", "DEBFULLNAME")
_NAME_VARIABLES += ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME")
_HOST_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST")
_HOME_VARIABLES = ("HOME", "USERPROFILE", "SUDO_HOME")
# Of everybody, so they tell nothing and stand in other paths.
_SHARED = """
/ /bin /data /dev /etc /home /lib /mnt /opt /proc /run /srv /sys /tmp /usr /var /usr/bin
/usr/lib /usr/local /usr/local/bin /usr/src /usr/src/app /var/tmp /nonexistent /Users
/app /code /workspace
"""
_SHARED_FOLDERS = frozenset(_SHARED.split())
_PASSWORD_IN_ADDRESS = re.compile(r"://([^\s/@:]*):([^\s/@]+)@")


@dataclass(frozen=True)
class Known:
    """What must not be in a pack, and the folders whose names tell it.

    `secrets` are values with the name of the variable that holds them, "" without one.
    """

    names: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()


def known(environ: Mapping[str, str], projects: Iterable[str] = ()) -> Known:
    """What an environment, the account and the machine say."""
    account = _account()
    names = [environ.get(variable, "") for variable in _NAME_VARIABLES]
    homes = [environ.get(variable, "") for variable in _HOME_VARIABLES]
    if account is not None:
        names += [account.pw_name, account.pw_gecos.split(",")[0]]
        homes.append(account.pw_dir)
    hosts = [environ.get(variable, "") for variable in _HOST_VARIABLES]
    home_folders = _folders(homes)
    return Known(
        names=_distinct([*names, *map(_last_name, home_folders)]),
        hosts=_distinct([*hosts, platform.node()]),
        homes=home_folders,
        projects=tuple(
            folder for folder in _folders(projects) if folder not in home_folders
        ),
        temporary=_folders([environ.get("TMPDIR", ""), tempfile.gettempdir()]),
        secrets=secrets_of(environ),
    )


def secrets_of(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables to be kept secret, and the passwords inside addresses."""
    found: dict[tuple[str, str], None] = {}
    for variable, value in environ.items():
        # A path says where a secret lies; its private part goes with the folders.
        path = value.startswith("/") and os.path.exists(value)
        kept = value.strip()
        if kept and not path and says_secret(variable) and not is_switch(kept):
            found[variable, kept] = None
        for _, password in _PASSWORD_IN_ADDRESS.findall(value):
            found["", password] = None
    return tuple(found)


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:  # a container may run as a number without an account
        return None


def _last_name(folder: str) -> str:
    """`/home/ann` is called after its owner, `/opt/service` need not be."""
    parent, name = os.path.split(folder)
    return name if os.path.basename(parent) in ("home", "Users") else ""


def _folders(paths: Iterable[str]) -> tuple[str, ...]:
    """Absolute folders and what they lead to; those that everybody has left out."""
    given = [os.path.normpath(path) for path in paths if os.path.isabs(path)]
    found = [*given, *(str(Path(path).resolve()) for path in given)]
    return tuple(folder for folder in _distinct(found) if folder not in _SHARED_FOLDERS)


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.strip() for value in values if value.strip()))
