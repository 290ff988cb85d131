"""The exceptions for packs: one is refused when read, the other failed when built."""

from __future__ import annotations

from torchproof.records import UserError


class Refused(UserError):
    """The pack cannot be read or trusted; the message says why and what to do."""


class Unverified(UserError):
    """The new pack failed its verification in a clean process and was discarded."""
