"""What grows from call to call: the finding says what, where, and how to stop it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from torchproof.checking import rules
from torchproof.records.run import Finding

HISTORY = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.past = []

    def forward(self, x):
        STATEMENT
        return torch.stack([x, *self.past]).mean(0)


def make():
    return Net(), [(torch.ones(2) * n,) for n in range(6)]
"""

GENERATION = """\
import torch


@torch.compile(backend="eager", dynamic=False)
def step(tokens):
    return tokens[-1:] + 1


tokens = torch.zeros(3)
for _ in range(5):
    STATEMENT
"""


def recompiles(path: Path, observe: Any, program: str) -> list[Finding]:
    path.write_text(textwrap.dedent(program))
    target = f"{path}:make" if "def make" in program else str(path)
    return [f for f in rules.check(observe(target)) if f.kind == "recompile"]


def test_a_list_that_only_changes_does_not_grow(tmp_path: Path, observe: Any) -> None:
    statement = "self.past = [x] * (len(self.past) % 3 + 1)"
    program = HISTORY.replace("STATEMENT", statement)
    found = recompiles(tmp_path / "net.py", observe, program)
    assert found and not any("growing" in f.message for f in found)


def test_tokens_that_are_generated(tmp_path: Path, observe: Any) -> None:
    statement = "tokens = torch.cat((tokens, step(tokens)))"
    program = GENERATION.replace("STATEMENT", statement)
    [finding] = recompiles(tmp_path / "generate.py", observe, program)
    assert "growing by 1 with each call" in finding.message
    assert "`tokens = torch.cat((tokens, step(tokens)))`" in finding.fix
    assert "generate.py:11" in finding.fix and "final size" in finding.fix
