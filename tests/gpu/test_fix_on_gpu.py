"""`fix` on a GPU: each proof is a new process, and generated code is timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.fixing import FixOptions, fix
from torchproof.targets import Options

pytestmark = pytest.mark.gpu
RULES = Path(__file__).resolve().parent.parent / "rules"

PROGRAM = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        if (x > 100).any():
            raise ValueError("too large")
        y = self.linear(x)
        if y.mean() > 0:
            y = y * 2
        else:
            y = y - 1
        return y.relu()

def make():
    return Net(), [(torch.randn(8, 64),), (torch.randn(8, 64) + 1,)]
"""


def test_breaks_are_removed_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(PROGRAM)
    run = fix(
        f"{path}:make",
        Options(device="cuda"),
        fix_options=FixOptions(effort="normal"),
        save_in=tmp_path / "runs",
    )
    assert run.fixing is not None and run.counts["graph_breaks"] == 2
    accepted = [each for each in run.fixes if each.status == "verified"]
    rejected = [(each.title, each.why) for each in run.fixes if not each.receipt]
    assert run.fixing.counts["graph_breaks"] == 0, rejected
    for each in accepted:
        assert each.receipt is not None
        assert each.receipt.backend == "inductor"
        assert each.receipt.outputs in ("same", "rounding")
        assert each.receipt.speed is not None


def test_hazard_of_real_cuda_graphs_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGET_DEVICE", "cuda")
    path, code = tmp_path / "model.py", "CG301"
    path.write_text((RULES / f"{code}.py").read_text())
    run = fix(
        f"{path}:bad",
        Options(device="cuda", as_written=True),
        fix_options=FixOptions(effort="normal"),
        save_in=tmp_path / "runs",
    )
    assert code in {finding.code for finding in run.findings}
    rejected = [(each.title, each.why) for each in run.fixes if not each.receipt]
    (accepted,) = [each for each in run.fixes if each.status == "verified"]
    assert accepted.codes == (code,), rejected
    assert run.fixing is not None and run.fixing.remaining == ()
    # The original raises while its graphs are recorded, so that nothing is timed.
    assert accepted.receipt is not None and accepted.receipt.backend == "inductor"
