"""Findings of a workload, each run once; and a place given by its source text."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from torchproof.checking import rules
from torchproof.records.run import Finding, Observation
from torchproof.targets.workloads import WORKLOADS

Found = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def observed(observe: Callable[..., Observation]) -> Callable[..., Observation]:
    """`observed(workload, **options)`: what `check` sees on the CPU, once a session."""
    kept: dict[str, Observation] = {}

    def run(workload: str, **options: object) -> Observation:
        key = f"{workload} {sorted(options.items())}"
        if key not in kept:
            kept[key] = observe(f"workload:{workload}", device="cpu", **options)
        observation = kept[key]
        assert observation.error is None, observation.error
        return observation

    return run


@pytest.fixture(scope="session")
def found(observed: Callable[..., Observation]) -> Found:
    """`found(workload, **options)`: the findings of `check`."""
    return lambda workload, **options: rules.check(observed(workload, **options))


def place(workload: str, text: str) -> tuple[str, int]:
    """File name and line of the one line of a workload's module with this text."""
    module = importlib.import_module(WORKLOADS[workload].module)
    path = Path(module.__file__ or "")
    lines = path.read_text().splitlines()
    [line] = [n for n, source in enumerate(lines, 1) if text in source]
    return path.name, line


def places(findings: list[Finding], kind: str) -> set[tuple[str, int]]:
    """Where findings of a kind are."""
    return {
        (Path(f.file).name, f.line)
        for f in findings
        if f.kind == kind and f.file and f.line
    }
