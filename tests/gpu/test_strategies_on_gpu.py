"""Strategies with a graph in arms on a GPU, and replays while everything changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchproof.measure.replies import FirstPass
from torchproof.measure.specs import StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records.run import Frame
from torchproof.strategies.strategy import parse
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

# What torch recommends on a GPU is no error of the program under test.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    def __init__(self, *, looks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head, self.looks = nn.Linear(64, 8), looks

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.blocks(x))
        return x * 2 if self.looks and x.sum().item() > 1e9 else x


def prepared(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *, looks: bool = False
) -> tuple[StrategyWorker, FirstPass, list[dict[str, Any]]]:
    """A training arm after its first pass and some more, and the answers of two."""

    def fresh(job: Job) -> Loaded:
        calls.seed()
        with torch.device("cuda"):
            net, given = Net(looks=looks), [(torch.randn(n, 64),) for n in (4, 9)]
        return Loaded(net, given, None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    target = Target("file.py:make", "factory", "file.py")
    run = Job(target, train=True, device="cuda")
    arm = StrategyWorker(StrategyJob(parse(name), run))
    paths = [str(folder / f"{number}.pt") for number in range(2)]
    facts = arm.prepare(paths[0])
    for _ in range(20):
        arm._pass()
    arm.save_outputs(paths[1])
    saved = [torch.load(path, weights_only=False) for path in paths]
    return arm, facts, [outputs for _, outputs in saved]


@pytest.mark.parametrize("name", ["eager+graph", "regional+graph"])
def test_an_arm_with_a_graph_answers_as_eager_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    _, _, plain = prepared(monkeypatch, tmp_path, "eager")
    arm, facts, replayed = prepared(monkeypatch, tmp_path, name)
    assert not facts.fell_back and not arm._fell_back()
    assert facts.first_call_s >= arm.fn.status().buckets[0].record_s
    assert arm.fn.status().replays >= 2 * (1 + 20 + 1)
    for mine, theirs in zip(replayed, plain, strict=True):
        assert mine.keys() == theirs.keys()
        assert any("gradient of blocks.0.inner.weight" in label for label in mine)
        for label, value in theirs.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(
                    mine[label], value, rtol=1e-3, atol=1e-6, msg=label
                )


def test_an_arm_without_a_graph_says_which_line_stops_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arm, facts, _ = prepared(monkeypatch, tmp_path, "eager+graph", looks=True)
    lines = Path(__file__).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if ".item() >" in line)
    assert any(f"{Path(__file__).name}:{number}" in why for why in facts.fell_back)
    assert arm.fn.status().replays == 0


def test_no_answer_is_stale() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    found = {}
    for more in ((), ("--blind",)):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.replays", "--replays", "500", *more],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.stdout, done.stderr[-2000:]
        found[more] = json.loads(done.stdout)
    assert found[()]["stale"] == 0 and found[()]["replays"] >= 500
    assert found[("--blind",)]["stale"] > 0
