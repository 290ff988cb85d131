"""What removes a finding, as data that a program can apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchproof.records.fixes import Mark, Replacement, Setting
from torchproof.records.schema import Record


@dataclass(frozen=True)
class Remedy(Record):
    """One way to remove a finding; its kind says which field describes it.

    `edit` and `patch` have replacements, of the user's files and of a library's. Of
    several settings, each alone removes it; marks are set all together. `upgrade` has
    the first version of torch that needs nothing else, and `none` the reason.
    """

    kind: Literal["edit", "setting", "mark", "patch", "upgrade", "none"]
    replacements: tuple[Replacement, ...] = ()
    settings: tuple[Setting, ...] = ()
    marks: tuple[Mark, ...] = ()
    version: str | None = None
    why: str = ""
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)
