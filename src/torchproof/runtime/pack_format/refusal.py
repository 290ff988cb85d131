"""Why a pack is not used, or not made."""

from __future__ import annotations

from torchproof.records import UserError


class Refused(UserError):
    """A pack that is not to be read or trusted: one line with what, and what next."""


class Unverified(UserError):
    """A pack that did not do in a clean process what it is for, so it was not made."""
