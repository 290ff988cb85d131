"""The key that signs packs: a file that only its owner reads."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from torchproof.records import UserError, files

VARIABLE = "TORCHPROOF_PACK_KEY"
_LEAST_BYTES, _MOST_BYTES = 16, 2**16


def read_key(
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> bytes | None:
    """The key in a file, or in the one that the environment names; None without one."""
    given = file or environ.get(VARIABLE)
    if not given:
        return None
    path = Path(given)
    try:
        opened = files.open_regular(path)
    except OSError as error:
        raise UserError(f"cannot read the key {path}: {error.strerror}") from None
    with opened:
        _assert_private(path, os.fstat(opened.fileno()))
        return usable_key(opened.read(_MOST_BYTES), str(path))


def usable_key(key: bytes, file: str = "KEYFILE") -> bytes:
    """The key without the end of its line; with an empty one anybody could sign."""
    key = key.strip()
    if len(key) < _LEAST_BYTES:
        raise UserError(
            f"the key {file} has {len(key)} bytes, at least {_LEAST_BYTES} are needed:"
            f" openssl rand -hex 32 > {file}"
        )
    return key


def _assert_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise UserError(f"the key {path} belongs to user {status.st_uid}, not to you")
    # A group may read it: that is how a container gets a secret.
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UserError(f"the key {path} is open to others: chmod 600 {path}")


def signature(key: bytes, manifest: bytes) -> bytes:
    """What `manifest.sig` holds: the HMAC-SHA256 of the manifest, as a line of hex."""
    return hmac.new(key.strip(), manifest, hashlib.sha256).hexdigest().encode() + b"\n"


def fits(key: bytes, manifest: bytes, signed: bytes) -> bool:
    return hmac.compare_digest(signature(key, manifest), signed)
