"""Calls that need values of tensors run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sites import site
from test_fixer import fixed

from torchproof.fixing.observed_calls import ObservedCall, Value
from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.host_calls import call

HELPER = """
import torch


def positions(ids, start):
    return torch.stack([torch.arange(n) for n in ids.tolist()])


def step(x, ids):
    where = positions(ids, 1)  # <- positions(ids, 1)
    return x[where]
"""


def seen(count: int, given: str, **changes: object) -> ObservedCall:
    ids = Value("tensor", (count,), "torch.int64", "cpu")
    result = Value("tensor", (count, 4), "torch.int64", "cpu")
    known = ObservedCall({"0": ids}, (result,), False, given)
    return replace(known, **changes)  # type: ignore[arg-type]


def drafted(*observed: ObservedCall) -> str:
    at = replace(site(HELPER), inner="positions", probe=lambda text: observed)
    return call(at).text


def test_sizes_are_those_of_an_argument_or_constants() -> None:
    text = drafted(seen(2, "a"), seen(3, "b"))
    assert "from torchproof import host_call\n" in text
    new = """\
    where = host_call(
        positions, ids, 1, like=ids.new_empty((ids.shape[0], 4), dtype=torch.int64)
    )
"""
    assert "".join(new.split()).replace(",)", ")") in "".join(text.split()).replace(
        ",)", ")"
    )


OTHER = Value("tensor", (2, 5), "torch.int64", "cpu")
REFUSED = {
    "is not known before": (seen(2, "a"), seen(2, "b", results=(OTHER,))),
    "always gets the same values": (seen(2, "a"), seen(3, "a")),
    "changes an argument": (seen(2, "a", problem="it changes an argument"),),
    "does not run": (),
    "not tensors": (seen(2, "a", results=(Value("other", dtype="list"),)),),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_known_shape_is_refused(reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        drafted(*REFUSED[reason])


ON_HOST = """
import numpy as np
import torch

def spans(shape, lengths):
    mask = np.zeros(shape, dtype=bool)
    for row, limit in enumerate(lengths.tolist()):
        start = np.random.randint(0, max(limit - 2, 1))
        mask[row, start : start + 2] = True
    return mask

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, lengths):
        y = self.linear(x)
        mask = spans((x.shape[0], x.shape[1]), lengths)
        mask = torch.tensor(mask, device=x.device)
        return y * mask[..., None]

def make():
    lengths = [torch.tensor([3, 6]), torch.tensor([5, 4]), torch.tensor([6, 6])]
    return Net(), [(torch.randn(2, 6, 8), each) for each in lengths]
"""


def test_a_call_that_draws_random_numbers_runs_on_the_host(tmp_path: Path) -> None:
    run = fixed(tmp_path, ON_HOST)
    (accepted,) = [each for each in run.fixes if each.status == "verified"]
    assert "on the host" in accepted.title and accepted.tier == "safe"
    assert "torch.as_tensor(mask" in accepted.diff
    assert accepted.receipt is not None
    assert accepted.receipt.graphs[1] == 1 and accepted.receipt.breaks[1] == 0
