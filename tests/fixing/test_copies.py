"""Deep copies of tensors become clones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fix_runs import fixed, verified
from sites import function_of, program, site

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.copies import clone

SEEN = "context: copy.deepcopy(TensorVariable())"
PROGRAM = """
import copy
from copy import deepcopy

import torch


def step(x, other=None):
    {}
    kept += 1
    return x * 2 + kept


def make():
    return step, [(torch.randn(2, 3),) for _ in range(3)]
"""


def step_with(line: str) -> str:
    return program(PROGRAM.format(line))


def cloned(text: str, *evidence: str):
    at = site(text, "GB109")
    return clone(replace(at, finding=replace(at.finding, evidence=evidence)))


@pytest.mark.parametrize("called", ["copy.deepcopy", "deepcopy"])
def test_becomes_a_clone(called):
    before = step_with(f"kept = {called}(x)  # <-")
    draft = cloned(before, SEEN)
    assert draft.tier == "safe"
    assert draft.text == step_with(
        "kept = x.detach().clone().requires_grad_(x.requires_grad)"
    )
    old, new = function_of(before), function_of(draft.text)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 2).t()
    expected = old(x)
    for version in (new, compiled):
        assert torch.equal(version(x), expected)
        assert version(x).stride() == expected.stride()


def test_a_leaf_stays_a_leaf_that_needs_a_gradient():
    text = cloned(step_with("kept = copy.deepcopy(x)  # <-"), SEEN).text
    made = text.replace("    kept += 1\n    return x * 2 + kept", "    return kept")
    kept = function_of(made)(torch.ones(2, requires_grad=True))
    assert kept.is_leaf and kept.requires_grad


@pytest.mark.parametrize(
    ("line", "evidence"),
    [
        ("kept = copy.deepcopy(other)  # <-", ()),
        ('kept = copy.deepcopy({"x": x})["x"]  # <-', (SEEN,)),
        ("kept = copy.deepcopy(x, other)  # <-", (SEEN,)),
        ("kept = copy.deepcopy(self.weight)  # <-", (SEEN,)),
        ("kept = copy.deepcopy(other.pop())  # <-", (SEEN,)),
        ("kept = copy.copy(x)  # <-", (SEEN,)),
    ],
)
def test_refused(line, evidence):
    with pytest.raises(Refused):
        cloned(step_with(line), *evidence)


@pytest.mark.slow  # proofs of its own
def test_verified(tmp_path: Path) -> None:
    text = step_with("kept = copy.deepcopy(x)")
    [accepted] = verified(fixed(tmp_path, text))
    assert accepted.title == "clone the tensor instead of a deep copy"
    assert accepted.receipt is not None and accepted.receipt.breaks == (1, 0)
