"""Attributes that are converted in each call are converted only where needed."""

import pytest
import torch
from sites import function_of, program, rewritten

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.casts import where_needed

PROGRAM = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Buffer(torch.arange(32.0).view(8, 4), persistent=False)

    def forward(self, x, other=None):
        # It may still be on another device.
        {}
        return x + self.table[: x.shape[0]]


def make():
    return Net(), [(torch.randn(3, 4),) for _ in range(3)]
"""


def net_with(*lines: str) -> str:
    return program(PROGRAM.format("\n        ".join(lines)))


CASES = {
    "keywords": (
        "self.table.to(device=x.device, dtype=x.dtype)",
        "self.table.device != x.device or self.table.dtype != x.dtype",
    ),
    "dtype": ("self.table.to(x.dtype)", "self.table.dtype != x.dtype"),
    "constant": ("self.table.to(torch.float32)", "self.table.dtype != torch.float32"),
    "method": ("self.table.float()", "self.table.dtype != torch.float32"),
    "device": ("self.table.to(x.device)", "self.table.device != x.device"),
}


@pytest.mark.parametrize("name", CASES)
def test_converted_where_needed(name):
    call, test = CASES[name]
    before = net_with(f"self.table = {call}  # <-")
    draft = rewritten(where_needed, before, "GB199")
    assert draft.tier == "safe"
    after = net_with(f"if {test}:", f"    self.table = {call}")
    assert draft.text == after
    assert_same(before, after)


def assert_same(before: str, after: str) -> None:
    torch._dynamo.reset()
    old, new = function_of(before, "Net")(), function_of(after, "Net")()
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    for kind in (torch.float32, torch.float64, torch.float32):
        x = torch.randn(3, 4).to(kind)
        assert torch.equal(old(x), compiled(x))
        assert old.table.dtype == new.table.dtype


REFUSED = {
    "a copy": "self.table = self.table.to(x.dtype, copy=True)  # <-",
    "more than a conversion": "self.table = self.table.to(x.dtype) + 1  # <-",
    "another attribute": "self.other = self.table.to(x.dtype)  # <-",
    "a local name": "table = self.table.to(x.dtype)  # <-",
    "an unknown argument": "self.table = self.table.to(other)  # <-",
    "an argument with an effect": "self.table = self.table.to(dtype=other.pop())  # <-",
    "no conversion": "self.table = self.table.contiguous()  # <-",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(Refused):
        rewritten(where_needed, net_with(REFUSED[name]), "GB199")
