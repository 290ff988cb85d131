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

from torchproof.records import schema
from torchproof.runtime.pack_format.refusal import Refused

SCHEMA = 1
NAME = "manifest.json"
SIGNATURE = "manifest.sig"
OWN = (NAME, SIGNATURE)
MOST_BYTES = 2**24  # a manifest of a thousand files has about 200 kB
_MOST_FILE = 2**60
_PATH_BYTES = 1000
_PART_BYTES = 255
_DEPTH = 32
_KINDS = ("repro", "deploy")

Kind = Literal["repro", "deploy"]


@dataclass(frozen=True)
class File:
    """One file of a pack; `about` says which data of the user it contains."""

    sha256: str
    size: int
    about: str = ""
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        fields = {"sha256": self.sha256, "bytes": self.size, "about": self.about}
        return fields | dict(self.other)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> File:
        other = dict(plain)
        digest = other.pop("sha256", None)
        size = other.pop("bytes", None)
        about = other.pop("about", "")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise Refused(f"a file's sha256 is invalid: {digest!r:.80}")
        if type(size) is not int or not 0 <= size <= _MOST_FILE:
            raise Refused(f"a file's size is invalid: {size!r:.40}")
        if not isinstance(about, str):
            raise Refused("a file's description is not text")
        return cls(sha256=digest, size=size, about=about, other=other)


@dataclass(frozen=True)
class Manifest:
    """The manifest. `other` has the fields that this version of torchproof ignores."""

    kind: Kind
    name: str
    torchproof: str
    made: str = ""  # ISO 8601, UTC
    target: str = ""
    command: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict, hash=False)
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    files: Mapping[str, File] = field(default_factory=dict, hash=False)
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def size(self) -> int:
        """The total size of the files in bytes."""
        return sum(file.size for file in self.files.values())

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"schema": SCHEMA}
        plain |= {name: getattr(self, name) for name in (*_TEXTS, *_TABLES)}
        files = sorted(self.files.items())
        plain["files"] = {name: file.to_json() for name, file in files}
        return plain | dict(self.other)

    def to_bytes(self) -> bytes:
        body = json.dumps(self.to_json(), indent=1).encode()
        return body.removesuffix(_END) + _seal(body)

    @classmethod
    def from_json(cls, plain: Any) -> Manifest:
        if not isinstance(plain, dict) or not isinstance(plain.get("schema"), int):
            raise Refused("it is not a manifest of a pack")
        if schema.is_deep(plain):
            raise Refused("it is nested too deeply")
        if plain["schema"] > SCHEMA:
            raise Refused(
                f"it has schema {plain['schema']}, but this torchproof reads at most"
                " schema"
                f" {SCHEMA}: install a newer torchproof"
            )
        other = {k: v for k, v in plain.items() if k not in ("schema", "sha256")}
        values: dict[str, Any] = {}
        for names, kind in ((_TEXTS, str), (_TABLES, dict), (("files",), dict)):
            for name in names:
                values[name] = other.pop(name, kind())
                if not isinstance(values[name], kind):
                    raise Refused(f"its field {name} is not a {kind.__name__}")
        if values["kind"] not in _KINDS:
            kind = values["kind"]
            raise Refused(f"its kind is {kind!r:.40}, not repro or deploy")
        values["files"] = _files(values["files"])
        return cls(**values, other=other)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Raises `Refused` for bytes that were changed or need a newer torchproof."""
        if len(raw) > MOST_BYTES:
            raise Refused(f"it has {len(raw)} bytes, more than {MOST_BYTES}")
        try:
            plain = schema.loads(raw.decode(), object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError):
            raise Refused("it is not valid JSON") from None
        manifest = cls.from_json(plain)
        length = len(_seal(b""))
        if raw[-length:] != _seal(raw[:-length] + _END):
            raise Refused("it was changed after it was written")
        return manifest


_TEXTS = ("kind", "name", "torchproof", "made", "target", "command")
_TABLES = ("environment", "details")
_END = b"\n}"


def _seal(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest().encode()
    return b',\n "sha256": "' + digest + b'"' + _END + b"\n"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Rejects duplicate keys, which different JSON readers resolve differently."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("duplicate key")
    return table


def _files(plain: Mapping[str, Any]) -> dict[str, File]:
    files = {}
    for name, fields in plain.items():
        if reason := why_unsafe(name):
            raise Refused(f"{name!r} in it {reason}")
        if not isinstance(fields, dict):
            raise Refused(f"its entry for {name!r} is not a table")
        files[name] = File.from_json(fields)
    for name in files:
        if parent := next((p for p in parents(name) if p in files), None):
            raise Refused(f"it lists {parent!r} both as a file and as a folder")
    return files


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
    sizes = [len(part.encode()) for part in parts]
    long = sum(sizes) + len(sizes) > _PATH_BYTES or max(sizes) > _PART_BYTES
    if long or len(parts) > _DEPTH:
        return "is too long a file name"
    if name in OWN:
        return "is a reserved name"
    return None
