"""The key that signs packs: reads the key file, signs and verifies manifests."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from torchproof.records import UserError, files

VARIABLE = "TORCHPROOF_PACK_KEY"
_LEAST_BYTES = 16
_MOST_BYTES = 2**16


def read_key(
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> bytes | None:
    """Reads the key from `file`, else from the file that the environment names."""
    name = file or environ.get(VARIABLE)
    if not name:
        return None
    path = Path(name)
    try:
        opened = files.open_regular(path)
    except OSError as error:
        raise UserError(f"cannot read the key {path}: {error.strerror}") from None
    with opened:
        _assert_private(path, os.fstat(opened.fileno()))
        return usable_key(opened.read(_MOST_BYTES), str(path))


def usable_key(key: bytes, file: str = "KEYFILE") -> bytes:
    """Strips the key and checks its length: anybody could guess a short key."""
    key = key.strip()
    if len(key) < _LEAST_BYTES:
        raise UserError(
            f"the key {file} has {len(key)} bytes, but needs at least {_LEAST_BYTES}:"
            f" openssl rand -hex 32 > {file}"
        )
    return key


def _assert_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise UserError(f"the key {path} belongs to user {status.st_uid}, not to you")
    # Group-readable is fine: containers get secrets that way.
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UserError(
            f"the key {path} is readable or writable by other users: chmod 600 {path}"
        )


def signature(key: bytes, manifest: bytes) -> bytes:
    """The content of `manifest.sig`: the HMAC-SHA256 of the manifest, one hex line."""
    return hmac.new(key.strip(), manifest, hashlib.sha256).hexdigest().encode() + b"\n"


def fits(key: bytes, manifest: bytes, signed: bytes) -> bool:
    return hmac.compare_digest(signature(key, manifest), signed)
