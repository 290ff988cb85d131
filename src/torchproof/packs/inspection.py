"""What can be said of a pack without running any of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchproof.records import finite
from torchproof.runtime import Manifest, Refused, keys, open_pack, trust

Signature = Literal["none", "not checked", "fits", "does not fit"]


@dataclass(frozen=True)
class Inspection:
    """A pack as it lies there."""

    path: str
    form: Literal["folder", "archive"]
    manifest: Manifest
    signature: Signature
    damage: Mapping[str, str] = field(default_factory=dict, hash=False)  # by file
    refusal: str | None = None  # why `torchproof.load` would not take it here

    @property
    def is_intact(self) -> bool:
        return not self.damage

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "form": self.form,
            "intact": self.is_intact,
            "damage": dict(self.damage),
            "signature": self.signature,
            "refusal": self.refusal,
            "manifest": finite(self.manifest.to_json()),
        }


def inspect(path: str | os.PathLike[str], key: bytes | None = None) -> Inspection:
    """Reads all of a pack; refuses what is none."""
    with open_pack(path) as contents:
        damage = contents.damage()
        refusal = next(iter(damage.values()), None)
        try:
            trust.assert_origin(contents, key)
        except Refused as error:
            refusal = str(error)
        signature: Signature = "none"
        if contents.signature is not None:
            signature = "not checked"
            if key is not None:
                fits = keys.fits(key, contents.manifest_bytes, contents.signature)
                signature = "fits" if fits else "does not fit"
        return Inspection(
            str(path),
            "folder" if Path(path).is_dir() else "archive",
            contents.manifest,
            signature,
            damage,
            refusal,
        )
