"""What a pack is on disk: made whole or not at all, read without running any of it."""

from torchproof.packs.contents import Contents, is_pack, open_pack
from torchproof.packs.keys import read_key, usable_key
from torchproof.packs.made import Made
from torchproof.packs.manifest import File, Manifest
from torchproof.packs.refusal import Refused, Unverified
from torchproof.packs.trust import assert_trusted
from torchproof.packs.writing import (
    Stage,
    archive,
    assert_placeable,
    folder,
    scratch,
)

__all__ = [
    "Contents",
    "File",
    "Made",
    "Manifest",
    "Refused",
    "Stage",
    "Unverified",
    "archive",
    "assert_placeable",
    "assert_trusted",
    "folder",
    "is_pack",
    "open_pack",
    "read_key",
    "scratch",
    "usable_key",
]
