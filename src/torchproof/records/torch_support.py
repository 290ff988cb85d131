"""Which torch versions torchproof was tested with, and the error for a missing hook."""

from __future__ import annotations

import re
from importlib import metadata

from torchproof.records.user_error import UserError

OLDEST, NEWEST = (2, 11), (2, 15)


class MissingHook(UserError):
    """The installed torch lacks a private name that a feature needs."""


def installed_torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def untested_torch() -> str | None:
    """One line if the installed torch is none that torchproof was tested with."""
    version = installed_torch()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        return None
    return (
        f"torch {version} is not among the versions that torchproof was tested with"
        f" ({supported_torch()}); what it lacks is skipped and named"
    )


def supported_torch() -> str:
    """The range of versions, in words."""
    return " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
