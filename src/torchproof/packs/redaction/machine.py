"""Collects the private values of this machine: names, hosts, directories, secrets."""

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

_NAME_VARIABLES = (
    *("USER", "LOGNAME", "USERNAME", "LNAME", "SUDO_USER", "NB_USER"),
    *("SLURM_JOB_USER", "JUPYTERHUB_USER"),
    *("DEBFULLNAME", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"),
)
_HOST_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST")
_HOME_VARIABLES = ("HOME", "USERPROFILE", "SUDO_HOME")
# Directories that many machines have, so they reveal nothing.
_SHARED = """
/ /app /bin /code /data /dev /etc /home /lib /mnt /nonexistent /opt /proc /root /run
/srv /sys /tmp /Users /usr /usr/bin /usr/lib /usr/local /usr/local/bin /usr/src
/usr/src/app /var /var/tmp /workspace
"""
_SHARED_FOLDERS = frozenset(_SHARED.split())
_PASSWORD_IN_ADDRESS = re.compile(r"://[^\s/@:]*:([^\s/@]+)@")


@dataclass(frozen=True)
class PrivateValues:
    """The values that must not be in a pack."""

    names: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


def private_values(
    environ: Mapping[str, str], projects: Iterable[str] = ()
) -> PrivateValues:
    """The private values of an environment, the account and the machine."""
    account = _account()
    names = [environ.get(variable, "") for variable in _NAME_VARIABLES]
    homes = [environ.get(variable, "") for variable in _HOME_VARIABLES]
    if account is not None:
        names += [account.pw_name, account.pw_gecos.split(",")[0]]
        homes.append(account.pw_dir)
    hosts = [environ.get(variable, "") for variable in _HOST_VARIABLES]
    home_folders = _folders(homes)
    return PrivateValues(
        names=_distinct([*names, *map(_last_name, home_folders)]),
        hosts=_distinct([*hosts, platform.node()]),
        homes=home_folders,
        projects=tuple(
            folder for folder in _folders(projects) if folder not in home_folders
        ),
        temporary=_folders([environ.get("TMPDIR", ""), tempfile.gettempdir()]),
        secrets=secrets_of(environ),
    )


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of secret variables, and the passwords inside URLs."""
    secrets: dict[str, None] = {}
    for variable, value in environ.items():
        # A path is not a secret itself; its private part is hidden as a directory.
        path = value.startswith("/") and os.path.exists(value)
        stripped = value.strip()
        if stripped and not path and says_secret(variable) and not is_switch(stripped):
            secrets[stripped] = None
        secrets |= dict.fromkeys(_PASSWORD_IN_ADDRESS.findall(value))
    return tuple(secrets)


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:  # a container may run under a user id without an account
        return None


def _last_name(folder: str) -> str:
    """The owner's name in a path such as `/home/ann`, else an empty string."""
    parent, name = os.path.split(folder)
    return name if os.path.basename(parent) in ("home", "Users") else ""


def _folders(paths: Iterable[str]) -> tuple[str, ...]:
    """Absolute directories and their resolved paths, without the shared ones."""
    absolute = [os.path.normpath(path) for path in paths if os.path.isabs(path)]
    folders = [*absolute, *(str(Path(path).resolve()) for path in absolute)]
    return tuple(
        folder for folder in _distinct(folders) if folder not in _SHARED_FOLDERS
    )


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.strip() for value in values if value.strip()))
