"""Masks that become None where they mask nothing are kept while compiling."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.optional_masks import keep

PROGRAM = """
import torch


def step(x, pad=0, n=None):
    mask = x.eq(pad)
    {}
    y = x.float()
    if mask is not None:
        y = y.masked_fill(mask, -1)
    return y * 2


def make():
    return step, [(torch.arange(4) + k % 2,) for k in range(3)]
"""


def step_with(*lines: str) -> str:
    return program(PROGRAM.format("\n    ".join(lines)))


CASES = {
    "branch": (
        ("if not mask.any():  # <-", "    mask = None"),
        ("if not torch.compiler.is_compiling() and not mask.any():", "    mask = None"),
    ),
    "function": (
        ("if not torch.any(mask):  # <-", "    mask = None"),
        (
            "if not torch.compiler.is_compiling() and not torch.any(mask):",
            "    mask = None",
        ),
    ),
    "python first": (
        ("if mask is not None and not mask.any():  # <-", "    mask = None"),
        (
            "if not torch.compiler.is_compiling() and mask is not None and not"
            " mask.any():",
            "    mask = None",
        ),
    ),
    "expression": (
        ("mask = mask if mask.any() else None  # <-",),
        (
            "mask = mask if torch.compiler.is_compiling() or mask.any() else None"
            "  # kept",
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kept_while_compiling(name):
    before, after = CASES[name]
    draft = rewritten(keep, step_with(*before))
    assert draft.tier == "unsafe"
    assert draft.text == step_with(*after).replace("  # kept", "")
    torch._dynamo.reset()
    old, new = function_of(step_with(*before)), function_of(draft.text)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    for x in (torch.arange(4), torch.arange(4) + 1):
        assert torch.equal(old(x), new(x))
        assert torch.equal(old(x), compiled(x))


REFUSED = {
    "another name": ("if not mask.any():  # <-", "    n = None"),
    "another condition": ("if mask.any():  # <-", "    mask = None"),
    "one of two conditions": ("if n or not mask.any():  # <-", "    mask = None"),
    "another value": ("if not mask.any():  # <-", "    mask = x > 1"),
    "two statements": ("if not mask.any():  # <-", "    mask = None", "    n = 1"),
    "an else": (
        "if not mask.any():  # <-",
        "    mask = None",
        "else:",
        "    x = x + 1",
    ),
    "along a dimension": ("if not mask.any(0):  # <-", "    mask = None"),
    "another mask": ("mask = mask if x.any() else None  # <-",),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(Refused):
        rewritten(keep, step_with(*REFUSED[name]))
