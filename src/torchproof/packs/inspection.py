"""Inspects a pack without running any of its code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torchproof.records import JsonObject
from torchproof.runtime import Manifest, Refused, keys, open_pack, trust

Signature = Literal["none", "not checked", "fits", "does not fit"]


@dataclass(frozen=True)
class Inspection:
    """The manifest of a pack, and whether the pack is intact, signed and loadable."""

    path: str
    form: Literal["folder", "archive"]
    manifest: Manifest
    signature: Signature
    damage: Mapping[str, str] = field(default_factory=dict, hash=False)  # by file
    refusal: str | None = None  # why `torchproof.load` would refuse it here

    @property
    def is_intact(self) -> bool:
        return not self.damage

    def to_json(self) -> JsonObject:
        return {
            "path": self.path,
            "form": self.form,
            "intact": self.is_intact,
            "damage": dict(self.damage),
            "signature": self.signature,
            "refusal": self.refusal,
            "manifest": self.manifest.to_json(),
        }


def inspect(path: str | os.PathLike[str], key: bytes | None = None) -> Inspection:
    """Read and check all files of a pack; raises `Refused` for anything else."""
    if key is not None:
        keys.public_key(key)  # an unusable key is no property of the pack
    contents = open_pack(path)
    damage = contents.damage()
    refusal = next(iter(damage.values()), None)
    signature: Signature = "none"
    if contents.signature is not None:
        signature = "not checked" if key is None else "fits"
    try:
        trust.assert_origin(contents, key)
    except Refused as error:
        refusal = str(error)
        signature = "does not fit" if signature == "fits" else signature
    return Inspection(
        path=str(path),
        form="folder" if Path(path).is_dir() else "archive",
        manifest=contents.manifest,
        signature=signature,
        damage=damage,
        refusal=refusal,
    )
