"""The command, once from end to end: a break is packed, and fails for a stranger."""

from __future__ import annotations

from pathlib import Path

import commands
import failing
import forked_commands

PROGRAM = '''
"""A program with one failure."""

import torch


class HarvestModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fields = torch.nn.Linear(4, 4)

    def forward(self, grain):
        grain = self.fields(grain)
        # What the mill wants to know.
        weight = grain.sum().item()
        return grain * weight


def make():
    return HarvestModel(), [(torch.ones(2, 4),)]
'''


def test_a_break_is_packed_and_fails_for_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "mill.py").write_text(PROGRAM)
    path = tmp_path / "bug.tar.gz"
    done = forked_commands.torchproof(
        *("pack", "mill.py:make", "--for", "repro", "--effort", "quick", "-q"),
        *("--budget", "5s", "-o", str(path)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    shown = commands.torchproof("show", str(path), cwd=tmp_path)
    assert "GB0124" in shown.stdout and "repro.py" in shown.stdout
    everything = " ".join(failing.texts(path).values())
    assert "HarvestModel" not in everything and "the mill wants" not in everything
    python = failing.bare_python(tmp_path / "venv")
    assert failing.importable(python) == ["torch"]
    ran = failing.ran(failing.unpacked(path, tmp_path / "empty"), python)
    assert ran.code == 1
    assert ran.verdict.startswith("FAILS AS STATED: graph break, GB0124")
