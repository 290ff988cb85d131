"""What a module compiles when it is imported, and what is compiled for the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchproof.checking import rules
from torchproof.records.run import Finding

MODULE = """\
import torch

@torch.compile(backend="eager")
def step(x):
    return x + 1

def slow(x):
    return x * 2

fast = torch.compile(slow, backend="eager")

def build(model):
    torch.compile(model, backend="eager")
    return model
"""
FACTORY = """\
import torch
{imports}

class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}

def make():
    return {made}, [(torch.ones(2),)] * 2
"""


@pytest.fixture
def found(tmp_path: Path, observe: Any) -> Any:
    def check(imports: str, forward: str = "x + 1", made: str = "Model()") -> Any:
        name = f"steps_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(MODULE)
        source = FACTORY.format(imports=imports, forward=forward, made=made)
        (tmp_path / "factory.py").write_text(source.replace("steps", name))
        observation = observe(f"{tmp_path / 'factory.py'}:make", as_written=True)
        return {f.line: f for f in rules.check(observation) if f.kind == "no_op"}

    return check


def test_what_an_import_compiles_may_be_left_out_by_the_calls(found: Any) -> None:
    findings: dict[int, Finding] = found("import steps")
    assert {line: f.severity for line, f in findings.items()} == {3: "low", 10: "low"}
    for finding in findings.values():
        assert "not exercised by these calls" in finding.message
        assert "a target whose calls reach" in finding.fix


def test_what_is_called_is_no_finding(found: Any) -> None:
    assert 3 not in found("import steps", forward="steps.step(x)")


def test_what_is_compiled_for_the_target_and_bypassed_is_loud(found: Any) -> None:
    findings = found("import steps", made="steps.build(Model())")
    loud = [f for f in findings.values() if f.severity == "high"]
    assert [f.code for f in loud] == ["NC803"]
