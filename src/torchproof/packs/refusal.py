"""Why a pack is not used."""

from __future__ import annotations

from torchproof.records import UserError


class Refused(UserError):
    """A pack that is not to be read or trusted: one line with what, and what next."""
