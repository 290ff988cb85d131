"""One nursery for all tests of judges: torch is loaded once."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from torchproof.packs.repro.candidate import Candidate, Outcome, Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.repro_runner import ReproRunner

Judged = Callable[..., Outcome]


def draft_of(source: str) -> Candidate:
    return Candidate("program", textwrap.dedent(source), "", source.count("\n"))


@pytest.fixture(scope="session")
def judged() -> Iterator[Judged]:
    """`judged(judge, expected, source, **settings)`: what that repro shows."""
    court = ReproRunner(
        FailureSignature("breaks", "a break", "graph_break"), Settings(limit_s=60)
    )

    def run(
        judge: str, expected: Mapping[str, Any], source: str, **settings: Any
    ) -> Outcome:
        # What is asked of it differs, the process that forks is the same.
        court.signature = FailureSignature(judge, f"a case of {judge}", judge, expected)
        court.settings = Settings(**{"limit_s": 60.0, **settings})
        return court.run_forked(draft_of(source))

    with court:
        yield run
