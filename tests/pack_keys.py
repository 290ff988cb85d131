"""Two key pairs that sign packs in tests."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519


def key_pair() -> tuple[bytes, bytes]:
    """A new private key and its public key, as openssl writes them."""
    private = ed25519.Ed25519PrivateKey.generate()
    return (
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        private.public_key().public_bytes(
            serialization.Encoding.PEM,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        ),
    )


KEY, PUBLIC = key_pair()
OTHER_KEY, OTHER_PUBLIC = key_pair()
