"""The manifest of a pack: what it is, what it was made from, and what each file is.

Its last line is the sha256 of all that stands before it, so that a changed letter
shows. That guards against accidents alone; against a forger, there is the signature
beside it.
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
NAME, SIGNATURE = OWN = "manifest.json", "manifest.sig"
MOST_BYTES = 2**24  # of a manifest; one of a thousand files has a fifth of a megabyte
_MOST_FILE = 2**60
_PATH_BYTES, _PART_BYTES, _DEPTH = 1000, 255, 32
_KINDS = ("repro", "deploy")

Kind = Literal["repro", "deploy"]


@dataclass(frozen=True)
class File:
    """One file of a pack; `about` says what it holds of the user's."""

    sha256: str
    size: int
    about: str = ""
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        told = {"sha256": self.sha256, "bytes": self.size, "about": self.about}
        return told | dict(self.other)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> File:
        other = dict(plain)
        digest, size = other.pop("sha256", None), other.pop("bytes", None)
        about = other.pop("about", "")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise Refused(f"no sha256 but {digest!r:.80}")
        if type(size) is not int or not 0 <= size <= _MOST_FILE:
            raise Refused(f"no size but {size!r:.40}")
        if not isinstance(about, str):
            raise Refused("no text about a file")
        return cls(digest, size, about, other)


@dataclass(frozen=True)
class Manifest:
    """What a pack says of itself. `other` keeps what this torchproof does not know."""

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
        """The bytes of all its files."""
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
            raise Refused("it is not the manifest of a pack")
        if schema.is_deep(plain):
            raise Refused("it is nested too deeply")
        if plain["schema"] > SCHEMA:
            raise Refused(
                f"it has schema {plain['schema']}, this torchproof reads up to "
                f"{SCHEMA}: install a newer torchproof"
            )
        other = {k: v for k, v in plain.items() if k not in ("schema", "sha256")}
        values: dict[str, Any] = {}
        for names, kind in ((_TEXTS, str), (_TABLES, dict), (("files",), dict)):
            for name in names:
                values[name] = other.pop(name, kind())
                if not isinstance(values[name], kind):
                    raise Refused(f"{name} in it is no {kind.__name__}")
        if values["kind"] not in _KINDS:
            kind = values["kind"]
            raise Refused(f"it is of kind {kind!r:.40}, not repro or deploy")
        values["files"] = _files(values["files"])
        return cls(**values, other=other)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Refuses what is changed, cut off, or of a newer torchproof."""
        if len(raw) > MOST_BYTES:
            raise Refused(f"it has {len(raw)} bytes, more than {MOST_BYTES}")
        try:
            plain = schema.loads(raw.decode(), object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise Refused("it is no JSON") from None
        found = cls.from_json(plain)
        length = len(_seal(b""))
        if raw[-length:] != _seal(raw[:-length] + _END):
            raise Refused("it was changed after it was written")
        return found


_TEXTS = ("kind", "name", "torchproof", "made", "target", "command")
_TABLES = ("environment", "details")
_END = b"\n}"


def _seal(body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest().encode()
    return b',\n "sha256": "' + digest + b'"' + _END + b"\n"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that stands twice means one thing to this reader, another to the next."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found


def _files(plain: Mapping[str, Any]) -> dict[str, File]:
    found = {}
    for name, told in plain.items():
        if wrong := why_unsafe(name):
            raise Refused(f"{name!r} in it {wrong}")
        if not isinstance(told, dict):
            raise Refused(f"{name!r} in it is no table")
        found[name] = File.from_json(told)
    for name in found:
        if above := next((p for p in parents(name) if p in found), None):
            raise Refused(f"{above!r} in it is a file and a folder")
    return found


def parents(name: str) -> list[str]:
    """The folders a file lies in, outermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def why_unsafe(name: str) -> str | None:
    """What is wrong with the name of a file; None if it stays within the pack."""
    parts = name.split("/")
    if name.startswith("/"):
        return "is an absolute path"
    if ".." in parts:
        return "climbs out of the pack"
    if "" in parts or "." in parts or "\\" in name or not name.isprintable():
        return "is no plain name of a file"
    sizes = [len(part.encode()) for part in parts]
    long = sum(sizes) + len(sizes) > _PATH_BYTES or max(sizes) > _PART_BYTES
    if long or len(parts) > _DEPTH:
        return "is too long a name"
    if name in OWN:
        return "is a name of the manifest's own"
    return None
