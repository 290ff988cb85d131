"""Findings of a workload, each run once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchproof.checking import rules
from torchproof.records.run import Finding, Observation

Found = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def observed(observe: Callable[..., Observation]) -> Callable[..., Observation]:
    """`observed(workload, **options)`: what `check` observes on the CPU."""
    observations: dict[str, Observation] = {}

    def run(workload: str, **options: object) -> Observation:
        key = f"{workload} {sorted(options.items())}"
        if key not in observations:
            observations[key] = observe(f"workload:{workload}", device="cpu", **options)
        observation = observations[key]
        assert observation.error is None, observation.error
        return observation

    return run


@pytest.fixture(scope="session")
def found(observed: Callable[..., Observation]) -> Found:
    """`found(workload, **options)`: the findings of `check`."""
    return lambda workload, **options: rules.check(observed(workload, **options))
