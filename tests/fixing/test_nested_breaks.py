"""A setting that makes breaks cheaper in functions that compiled code calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_runs import fixed, verified

from torchproof.fixing.fixer import _not_easier
from torchproof.fixing.proof import Proof
from torchproof.records import Observation, Overlay, Setting

NESTED = Setting("dynamo.nested_graph_breaks", True)
CALLED = """
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def bounds(self, x):
        words = str(x.sin()).split()
        return x.cos() * len(words)

    def forward(self, x):
        return self.linear(self.bounds(self.linear(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x):
        x = self.first(x.relu()) + 1
        return self.second(x) * 2

def make():
    return Net(), [(torch.ones(2, 4),), (torch.ones(2, 4),)]
"""


@pytest.mark.slow
def test_fewer_graphs_around_a_break_that_stays(tmp_path: Path) -> None:
    run = fixed(tmp_path, CALLED)
    (accepted,) = verified(run)
    assert accepted.settings == (NESTED,) and accepted.tier == "safe"
    receipt = accepted.receipt
    assert receipt is not None and run.fixing is not None
    before, after = receipt.graphs
    assert before is not None and after is not None and after < before
    assert receipt.breaks == (1, 1)
    assert [finding.kind for finding in run.fixing.remaining] == ["graph_break"]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({"graphs": 3, "recompiles": 0}, None),
        ({"graphs": 9, "recompiles": 1}, None),
        ({"graphs": 9, "recompiles": 2}, "it changes nothing: graphs stay at 9"),
        ({"graphs": 3, "recompiles": 4}, "recompiles rise from 2 to 4"),
        ({"graphs": 3, "skipped_frames": 1}, "skipped frames rise from 0 to 1"),
    ],
)
def test_less_has_to_go_wrong(after: dict[str, int | None], why: str | None) -> None:
    counts: dict[str, int | None] = {"graphs": 9, "recompiles": 2}
    nothing = Observation((), {})
    one = Proof(Overlay(), nothing, counts=counts)
    assert _not_easier(one, Proof(Overlay(), nothing, counts=after)) == why
