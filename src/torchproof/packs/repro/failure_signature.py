"""What fails, in words and as data that a judge compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchproof.records import Finding


@dataclass(frozen=True)
class Symptom:
    """One failure of one target.

    `judge` names the file of `repro/judges` that recognises it; `expected` is what that
    judge compares with, plain JSON without paths or names of the user's.
    """

    kind: str  # a kind of finding, or "hang"
    judge: str
    headline: str  # one sentence, as the title of a report
    expected: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ids: tuple[str, ...] = ()  # torch's own, such as GB0170
    search: str = ""  # what to look for among the reports that exist
    finding: Finding | None = None
