"""Two checks of one program: the same findings, or not the same question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forked_commands import torchproof

PROGRAM = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 8)
        self.step = 0

    def forward(self, x, scale):
        h = self.proj(x)
        print("start", h.shape)
        if h.sum() > 0:
            h = h + 1
        self.step += 1
        return h * helper(h) * scale

def helper(t):
    s = t.std().item()
    print("spread", s)
    return s

def make():
    torch.manual_seed(0)
    return Net(), [(torch.randn(n, 8), n * 0.5) for n in (4, 5, 6)]
"""
# Longer names, other lines, constants and sizes.
REWRITTEN = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 8)
        self.step = 7

    def forward(self, inputs, factor):
        hidden = (
            self.proj(inputs)
        )
        print("the beginning", hidden.shape)
        if hidden.sum() > 0.25:
            hidden = hidden + 2.5
        self.step += 3
        return hidden * helper(hidden) * factor


def helper(tensor):
    spread = (tensor
              .std().item())
    print("it is", spread)
    return spread


def make():
    torch.manual_seed(1)
    return Net(), [(torch.randn(n, 8), n * 0.25) for n in (9, 8, 7)]
"""


def check(folder: Path, program: str) -> dict[str, Any]:
    (folder / "model.py").write_text(program)
    words = ("check", "model.py:make", "--effort", "quick", "--format", "json")
    done = torchproof(*words, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def named(run: dict[str, Any]) -> dict[str, str]:
    found = (f for f in run["findings"] if f["status"] == "open")
    return {f["identity"]: f"{f['code']} {f['key']}" for f in found}


def test_a_rewritten_program_has_the_same_findings_and_other_calls(
    tmp_path: Path,
) -> None:
    first = check(tmp_path, PROGRAM)
    second = check(tmp_path, REWRITTEN)
    before, after = named(first), named(second)
    assert len(before) == sum(f["status"] == "open" for f in first["findings"]) >= 6
    assert set(before) == set(after), (before, after)
    assert second["baseline"]["differences"] == ["calls"]  # other sizes
    assert not any(f["status"] == "resolved" for f in second["findings"])
