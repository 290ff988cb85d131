"""Switches that `tune` tries on a real device: what they change, and their replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchproof.measure.replies import Replayed
from torchproof.measure.specs import Plan, StrategySpec
from torchproof.records.objective import Objective
from torchproof.strategies.strategy import parse
from torchproof.targets.target import parse as parse_target
from torchproof.torch_private import configs
from torchproof.tuning import candidates
from torchproof.tuning.candidates import PDL, Candidate
from torchproof.tuning.trial_worker import Worker

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

FACTORY = """
import torch
from torch import Tensor, nn


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(512), nn.Linear(512, 512)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Part(), Part()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * 2) * 2


def make():
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False).cuda(), [(torch.randn(64, 512).cuda(),)]
"""
BASE = Candidate(StrategySpec(parse("full+graph")))


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    why = configs.why_unavailable("inductor.triton.enable_pdl", "cuda")
    if why:
        pytest.skip(why)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FACTORY)
    return f"{tmp_path}/net.py:make"


def test_generated_kernels_wait_for_the_one_before_only_with_the_option() -> None:
    from torch._inductor.utils import run_and_get_code

    norm = nn.LayerNorm(512).cuda().requires_grad_(False)
    x = torch.randn(64, 512, device="cuda")

    def step(x: Tensor) -> Tensor:
        return norm(torch.tanh(x) + 1)

    for on in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(step, options={"triton.enable_pdl": on})
        _, codes = run_and_get_code(compiled, x)
        assert any("gdc_wait" in code for code in codes) is on


def test_a_thousand_replays_with_dependent_launches_are_bitwise_equal(
    target: str, tmp_path: Path
) -> None:
    plan = Plan(parse_target(target), (), quiet=True)
    found = candidates.candidates({}, "cuda", Objective(), {})
    [racing] = [each for each in found if each.switch == PDL]
    worker = Worker(plan, tmp_path, shares_caches=True)
    try:
        assert worker.probe(120).probe["unavailable"] == {}
        assert worker.replay(racing, BASE, 1000, 120) == Replayed(1000)
    finally:
        worker.close()
