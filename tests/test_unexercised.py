"""What a module compiles when it is imported, and what is compiled for the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules

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
import steps_unexercised as steps

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1

def make():
    return steps.build(Model()), [(torch.ones(2),)] * 2
"""


def test_what_an_import_compiles_is_low_and_what_is_bypassed_high(
    tmp_path: Path, observe: Any
) -> None:
    (tmp_path / "steps_unexercised.py").write_text(MODULE)
    (tmp_path / "factory.py").write_text(FACTORY)
    observation = observe(f"{tmp_path / 'factory.py'}:make", as_written=True)
    found = [f for f in rules.check(observation) if f.kind == "no_op"]
    low = [f for f in found if f.severity == "low"]
    assert sorted((f.code, f.line) for f in low) == [("NC801", 3), ("NC801", 10)]
    assert all("a target whose calls reach" in f.fix for f in low)
    assert [f.code for f in found if f.severity == "high"] == ["NC803"]
