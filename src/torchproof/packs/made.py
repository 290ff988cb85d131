"""A pack that was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchproof.runtime import Manifest


@dataclass(frozen=True)
class Made:
    """Where it lies and what it says of itself; `notes` are for who made it."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()
