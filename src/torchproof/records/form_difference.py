"""How the form of an output differs from eager's, whatever its values are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FormDifference:
    """How the form of an output differs from eager's.

    `harmful` says that a program which is right in eager can go wrong: a gradient is
    missing, a write to one tensor changes another, or `view` fails.
    """

    where: str
    what: Literal["strides", "requires_grad", "memory"]
    why: str
    harmful: bool
