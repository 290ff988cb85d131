"""Programs as candidates of a repro, and who runs them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from torchproof.packs.repro.candidate import Candidate, Outcome

RunOracle = Callable[..., Outcome]


def candidate_of(source: str) -> Candidate:
    return Candidate("program", textwrap.dedent(source), "", source.count("\n"))
