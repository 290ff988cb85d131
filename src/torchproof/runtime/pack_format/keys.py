"""The Ed25519 keys of packs: reads key files, signs and verifies manifests.

The private key signs and stays where packs are made. The public key verifies, and
nobody can sign with it. Needs `cryptography`, which the extra `sign` installs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.records import UserError, files
from torchproof.runtime.pack_format.manifest import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

VARIABLE = "TORCHPROOF_PACK_KEY"
_MOST_BYTES = 2**16
_HMAC_DIGITS = 64  # a signature of torchproof before it signed with Ed25519
_MAKE = (
    "openssl genpkey -algorithm ed25519 -out pack.key; openssl pkey -in pack.key"
    " -pubout -out pack.pub"
)


def read_key(
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> bytes | None:
    """Reads a key from `file`, else from the file that the environment names."""
    name = file or environ.get(VARIABLE)
    if not name:
        return None
    path = Path(name)
    try:
        with files.open_regular(path, _MOST_BYTES) as opened:
            key = opened.read()
            _assert_safe(path, os.fstat(opened.fileno()), secret=_is_private(key))
    except OSError as error:
        raise UserError(f"cannot read the key {path}: {error.strerror}") from None
    return key


def _is_private(key: bytes) -> bool:
    return b"PRIVATE KEY" in key


def _assert_safe(path: Path, status: os.stat_result, *, secret: bool) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise UserError(f"the key {path} belongs to user {status.st_uid}, not to you")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(f"other users can write the key {path}: chmod go-w {path}")
    # Group-readable is fine: containers get secrets that way.
    if secret and status.st_mode & stat.S_IRWXO:
        raise UserError(f"other users can read the key {path}: chmod 600 {path}")


def private_key(key: bytes) -> ed25519.Ed25519PrivateKey:
    """The key to sign with. Raises `UserError` for anything else."""
    if not _is_private(key):
        raise UserError(f"signing needs a private Ed25519 key: {_MAKE}")
    serialization, kinds = _cryptography()
    form = "ssh" if b"OPENSSH" in key else "pem"
    try:
        loaded = getattr(serialization, f"load_{form}_private_key")(key, password=None)
    except Exception as error:  # damaged, with a passphrase, or of another kind
        raise UserError(f"the private key cannot be read: {error}") from None
    if not isinstance(loaded, kinds.Ed25519PrivateKey):
        raise UserError(f"the private key is not an Ed25519 key: {_MAKE}")
    return loaded


def public_key(key: bytes) -> ed25519.Ed25519PublicKey:
    """The key to verify with. Raises `UserError` for anything else."""
    if _is_private(key):
        raise UserError(
            "verifying needs the public key, and this is the private one:"
            " openssl pkey -in pack.key -pubout -out pack.pub"
        )
    serialization, kinds = _cryptography()
    form = "ssh" if key.lstrip().startswith(b"ssh-") else "pem"
    try:
        loaded = getattr(serialization, f"load_{form}_public_key")(key)
    except Exception:  # ValueError, UnsupportedAlgorithm
        loaded = None
    if not isinstance(loaded, kinds.Ed25519PublicKey):
        raise UserError(f"verifying needs a public Ed25519 key: {_MAKE}")
    return loaded


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise Refused(
            "signatures need the package cryptography: pip install 'torchproof[sign]'"
        ) from None
    return serialization, ed25519


def signature(key: bytes, manifest: bytes) -> bytes:
    """The content of `manifest.sig`: the signature of the manifest, one hex line."""
    return private_key(key).sign(manifest).hex().encode() + b"\n"


def assert_signed(key: bytes, manifest: bytes, signed: bytes | None) -> None:
    """Raises `Refused` unless this key's private half signed the manifest."""
    public = public_key(key)
    if signed is None:
        raise Refused("it is not signed, but a key was given: pack it again with --key")
    digits = signed.strip()
    if len(digits) == _HMAC_DIGITS:
        raise Refused(
            "it was signed with a shared key, which anyone who verifies can forge:"
            " pack it again with --key and a private Ed25519 key"
        )
    try:
        public.verify(bytes.fromhex(digits.decode()), manifest)
    except Exception as error:  # InvalidSignature, or it is not hexadecimal
        raise Refused(
            "its signature does not fit the key: it was changed, or signed with another"
            " key"
        ) from error
