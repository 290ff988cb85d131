"""What grows from call to call: the finding says what, where, and how to stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.checking import rules

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


def test_only_what_grows_is_said_to_grow(tmp_path: Path, observe_all: Any) -> None:
    net, generate = tmp_path / "net.py", tmp_path / "generate.py"
    changes = "self.past = [x] * (len(self.past) % 3 + 1)"
    net.write_text(HISTORY.replace("STATEMENT", changes))
    grows = "tokens = torch.cat((tokens, step(tokens)))"
    generate.write_text(GENERATION.replace("STATEMENT", grows))
    changed, grown = (
        [f for f in rules.check(seen) if f.kind == "recompile"]
        for seen in observe_all([(f"{net}:make", {}), (str(generate), {})])
    )
    assert changed and not any("growing" in f.message for f in changed)
    [finding] = grown
    assert "growing by 1 with each call" in finding.message
    assert f"`{grows}`" in finding.fix
    assert "generate.py:11" in finding.fix and "final size" in finding.fix
