"""A break in a program of forty lines ends as a few lines without its words."""

import time
from pathlib import Path

import pytest

from torchproof.packs.repro.candidate import Candidate, Settings
from torchproof.packs.repro.failure_signature import FailureSignature
from torchproof.packs.repro.programs.anonymise import anonymise
from torchproof.packs.repro.programs.program_reducer import reduce_program
from torchproof.packs.repro.programs.whole_program import program_candidates
from torchproof.packs.repro.repro_runner import ReproRunner
from torchproof.targets.target import parse

PROGRAM = """
import math

import torch
from torch import nn


class AcmeAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.acme_mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.acme_mix(x).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class AcmeBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = AcmeAttention(width, 4)
        self.acme_peak = 0.0

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        self.acme_peak = max(self.acme_peak, x.abs().max().item())
        return x / (1.0 + self.acme_peak)


class AcmeModel(nn.Module):
    def __init__(self, layers=2, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(AcmeBlock(width) for _ in range(layers))
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def make():
    torch.manual_seed(0)
    model = AcmeModel()
    calls = [(torch.randn(2, 8, 32),) for _ in range(3)]
    return model, calls
"""

SYMPTOM = FailureSignature(
    oracle="breaks",
    headline="a graph break",
    expected={
        "type": "Unsupported Tensor.item() call with capture_scalar_outputs=False",
        "id": "GB0124",
        "names": [],
        "skips": False,
    },
)


@pytest.mark.slow
def test_a_break_is_left_alone_with_what_causes_it(tmp_path: Path) -> None:
    path = tmp_path / "acme.py"
    path.write_text(PROGRAM, encoding="utf-8")
    whole = next(program_candidates(parse(f"{path}:make")))
    with ReproRunner(SYMPTOM, Settings(compile={"backend": "eager"})) as court:

        def fails(draft: Candidate) -> bool:
            return court.run_forked(draft).is_same

        assert fails(whole)
        small = reduce_program(whole, fails, time.monotonic() + 240)
        found = anonymise(small, fails)
        outcome = court.run_isolated(court.text(found))
    assert outcome.is_same, outcome.text
    assert "acme" not in found.source.lower()
    assert lines(found.source) * 4 <= lines(PROGRAM), found.source


def lines(source: str) -> int:
    return len([line for line in source.splitlines() if line.strip()])
