"""The result of writing a pack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchproof.runtime import Manifest


@dataclass(frozen=True)
class PackResult:
    """The path and manifest of a pack; `notes` are for the user who wrote it."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()
