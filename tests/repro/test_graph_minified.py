"""A planted failure of Inductor in a transformer is found by both ways of shrinking."""

import time

import pytest
import torch
from graph_programs import recorded

from torchproof.packs.repro.candidate import Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.graphs.graph_reducer import reduce_graph
from torchproof.packs.repro.repro_runner import ReproRunner

pytestmark = pytest.mark.slow


class Block(torch.nn.Module):
    def __init__(self, width: int = 32, bad: bool = False) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.bad = bad

    def forward(self, x):
        b, t, d = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.view(b, t, 4, d // 4).transpose(1, 2) for part in parts)
        a = (q @ k.transpose(-1, -2) * (d // 4) ** -0.5).softmax(-1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        h = self.up(self.norms[1](x))
        if self.bad:  # Inductor's acosh on a CPU overflows far below the largest float
            h = torch.acosh(h.abs() * 1e20 + 2) / 50
        return x + self.down(torch.nn.functional.gelu(h))


def planted(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block(bad=True))
    x = torch.randn(2, 8, 32)
    with torch.no_grad():
        drafts, _ = recorded(lambda: torch.compile(model)(x), tmp_path)
    return drafts[0]


def test_wrong_answers_shrink_to_the_operation_that_is_wrong(tmp_path):
    draft = planted(tmp_path)
    assert draft.size > 40
    expected = {"how": "nan", "error": None}
    symptom = FailureSignature("answers", "wrong answers", "numerics", expected)
    with ReproRunner(symptom, Settings()) as court:
        assert court.run_forked(draft).is_same
        found = reduce_graph(
            draft,
            lambda other: court.run_forked(other).is_same,
            time.monotonic() + 240,
        )
        assert court.run_isolated(court.text(found)).is_same
    assert "acosh" in found.source
    assert found.size <= draft.size / 4
    assert found.size < 5


def test_operations_that_fail_are_found_and_nothing_is_tried_too_late(tmp_path):
    draft = planted(tmp_path)
    tried = []

    def fails(other):
        tried.append(other)
        return "acosh" in other.source

    assert reduce_graph(draft, fails, time.monotonic()) == draft
    assert not tried
    found = reduce_graph(draft, fails, time.monotonic() + 120)
    assert "acosh" in found.source
    assert found.size <= 2
    assert found.source.count("32") == 0  # sizes shrink too
