"""The error that the user can fix, as one line."""

from __future__ import annotations

from torchproof.records.printable import seen


class UserError(Exception):
    """An error that the user can fix: one line with the problem and the next step.

    `details` is more text, such as a traceback, that the command line shows with -v.
    """

    def __init__(self, message: str = "", *, details: str = "") -> None:
        super().__init__(message)
        self.details = details

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str, limit: int = 600) -> str:
    """Text that may quote a long error, shortened to one line."""
    words = seen(" ".join(text.split()))
    return words if len(words) <= limit else words[: limit - 4] + " ..."
