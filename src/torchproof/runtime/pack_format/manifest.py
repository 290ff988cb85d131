"""The manifest of a pack: its kind, its origin, and the size and hash of each file.

Takes the bytes of `manifest.json`, returns a `Manifest`, and writes one. The last line
is the sha256 of all lines before it. It detects accidental changes; only the signature
in `manifest.sig` protects against forgery.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchproof.records import JsonObject, Mismatch, UserError, schema

SCHEMA = 1
NAME = "manifest.json"
SIGNATURE = "manifest.sig"
OWN = (NAME, SIGNATURE)
MOST_BYTES = 2**24  # a manifest of a thousand files has about 200 kB
_PATH_BYTES = 1000
_PART_BYTES = 255
_END = b"\n}"


class Refused(UserError):
    """The pack cannot be read or trusted; the message says why and what to do."""


class Unverified(UserError):
    """The new pack failed its verification in a clean process and was discarded."""


@dataclass(frozen=True)
class File:
    """One file of a pack; `about` says which data of the user it contains."""

    sha256: str
    bytes: int
    about: str = ""


@dataclass(frozen=True)
class Manifest:
    """The manifest; `details` are those of the pack's kind."""

    kind: Literal["repro", "deploy"]
    name: str
    torchproof: str
    made: str = ""  # ISO 8601, UTC
    target: str = ""
    command: str = ""
    environment: JsonObject = field(default_factory=dict, hash=False)
    details: JsonObject = field(default_factory=dict, hash=False)
    files: Mapping[str, File] = field(default_factory=dict, hash=False)

    @property
    def size(self) -> int:
        """The total size of the files in bytes."""
        return sum(file.bytes for file in self.files.values())

    def to_json(self) -> JsonObject:
        return {"schema": SCHEMA, **schema.to_plain(self)}

    def to_bytes(self) -> bytes:
        return sealed(self.to_json())

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Raises `Refused` for bytes that were changed or need a newer torchproof."""
        if len(raw) > MOST_BYTES:
            raise Refused(f"it has {len(raw)} bytes, more than {MOST_BYTES}")
        try:
            plain = schema.loads(raw.decode(), object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError):
            raise Refused("it is not valid JSON") from None
        version = plain.get("schema") if isinstance(plain, dict) else None
        if not isinstance(version, int):
            raise Refused("it is not a manifest of a pack")
        if version > SCHEMA:
            raise Refused(
                f"it has schema {version}, but this torchproof reads at most schema"
                f" {SCHEMA}: install a newer torchproof"
            )
        try:
            manifest = schema.build(cls, plain)
        except Mismatch as error:
            raise Refused(str(error)) from None
        _assert_files(manifest.files)
        seal = _seal(b"")
        if raw[-len(seal) :] != _seal(raw[: -len(seal)] + _END):
            raise Refused("it was changed after it was written")
        return manifest


def sealed(plain: JsonObject) -> bytes:
    """The bytes of a manifest: JSON whose last line is the hash of the rest."""
    body = json.dumps(plain, indent=1).encode()
    return body.removesuffix(_END) + _seal(body)


def _seal(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest().encode()
    return b',\n "sha256": "' + digest + b'"' + _END + b"\n"


def _unique_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Rejects duplicate keys, which different JSON readers resolve differently."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("duplicate key")
    return table


def _assert_files(files: Mapping[str, File]) -> None:
    for name, file in files.items():
        if reason := why_unsafe(name):
            raise Refused(f"{name!r} in it {reason}")
        if not re.fullmatch("[0-9a-f]{64}", file.sha256):
            raise Refused(f"the sha256 of {name!r} is invalid: {file.sha256!r:.80}")
        if parent := next((p for p in parents(name) if p in files), None):
            raise Refused(f"it lists {parent!r} both as a file and as a folder")


def parents(name: str) -> list[str]:
    """The parent folders of a file, the outermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def why_unsafe(name: str) -> str | None:
    """Why a file name is not allowed in a pack; None if it is allowed."""
    parts = name.split("/")
    if name.startswith("/"):
        return "is an absolute path"
    if ".." in parts:
        return "leaves the pack through '..'"
    if "" in parts or "." in parts or "\\" in name or not name.isprintable():
        return "is not a valid file name"
    longest = max(len(part.encode()) for part in parts)
    if longest > _PART_BYTES or len(name.encode()) > _PATH_BYTES:
        return "is too long a file name"
    if name in OWN:
        return "is a reserved name"
    return None
