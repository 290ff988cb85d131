"""One fork server for all tests of oracles: torch is imported once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from oracle_runs import RunOracle, candidate_of

from torchproof.packs.repro.candidate import Outcome, Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.repro_runner import ReproRunner


@pytest.fixture(scope="session")
def runner() -> Iterator[ReproRunner]:
    signature = FailureSignature("breaks", "a break", "graph_break")
    with ReproRunner(signature, Settings(limit_s=60), header="torch 2.x") as runner:
        yield runner


@pytest.fixture(scope="session")
def run_oracle(runner: ReproRunner) -> RunOracle:
    """`run_oracle(oracle, expected, source, **settings)`: the outcome of that repro."""

    def run(
        oracle: str, expected: Mapping[str, Any], source: str, **settings: Any
    ) -> Outcome:
        headline = f"a case of {oracle}"
        runner.signature = FailureSignature(oracle, headline, oracle, expected)
        runner.settings = Settings(**{"limit_s": 60.0, **settings})
        return runner.run_forked(candidate_of(source))

    return run
