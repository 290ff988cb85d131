"""The programs of the advisories that need a GPU, and `check` on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchproof.checking import rules
from torchproof.checking.rules.advisories import ADVISORIES, Advisory

pytestmark = pytest.mark.gpu
ON_GPU = [each for each in ADVISORIES if each.device == "cuda"]
DIT = """
import torch
from torch.nn.functional import layer_norm

def modulated(x, table):
    a, b, c, d = table.chunk(4, dim=1)
    x = x + layer_norm(x, x.shape[-1:]) * (1 + a) + b
    return x + layer_norm(x, x.shape[-1:]) * (1 + c) + d

def make():
    table = torch.randn(1, 4, 1024, device="cuda", requires_grad=True)
    return modulated, [(torch.randn(1, 16384, 1024, device="cuda"), table)]
"""


@pytest.mark.parametrize("advisory", ON_GPU, ids=lambda a: a.code)
def test_the_program_shows_the_bug_where_torch_has_it(
    advisory: type[Advisory], tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    path.write_text(advisory.program)
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    version = torch.__version__
    shown = advisory.affects(version) and not version.startswith(advisory.not_shown)
    assert (done.returncode == 0) == shown, done.stderr


def test_check_warns_of_modulated_norms(observe: Any, tmp_path: Path) -> None:
    path = tmp_path / "dit.py"
    path.write_text(DIT)
    observation = observe(f"{path}:make", train=True, device="cuda")
    found = {finding.code for finding in rules.check(observation)}
    rule = rules.by_code("AD101")
    assert isinstance(rule, Advisory)
    assert ("AD101" in found) == rule.affects(torch.__version__)
