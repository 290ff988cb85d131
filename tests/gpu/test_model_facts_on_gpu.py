"""What a GPU's time is spent on, in programs that leave no doubt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records.run import Frame
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def many_small(x: Tensor) -> Tensor:
    for _ in range(200):
        x = x + 1
    return x


def few_large(x: Tensor) -> Tensor:
    for _ in range(10):
        x = (x * 2).tanh()
    return x


def products(x: Tensor) -> Tensor:
    for _ in range(4):
        x = x @ x
    return x


def attention(x: Tensor) -> Tensor:
    for _ in range(4):
        x = nn.functional.scaled_dot_product_attention(x, x, x)
    return x


def looks(x: Tensor) -> Tensor:
    if x.sum().item() > 0:  # one
        x = x + 1
    return x.cpu() + x.mean().to("cpu")  # and two


def looks_at_nothing(x: Tensor) -> Tensor:
    return x + torch.ones(4).to("cuda")


def arm(
    monkeypatch: pytest.MonkeyPatch, fn: Any, shape: tuple[int, ...], *, train: bool
) -> StrategyWorker:
    """An arm in eager after its first passes, with two calls."""

    def fresh(job: Job) -> Loaded:
        calls.seed()
        dtype = torch.bfloat16 if len(shape) > 1 else torch.float32
        given = [(torch.rand(*shape, device="cuda", dtype=dtype),) for _ in range(2)]
        made = fn() if isinstance(fn, type) else fn
        return Loaded(made, given, None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    target = Target("file.py:make", "factory", "file.py")
    run = Job(target, train=train, device="cuda")
    made = StrategyWorker(StrategyJob(EAGER, run))
    made.prepare(None)
    for _ in range(5):
        made._pass()
    return made


@pytest.mark.parametrize(
    ("fn", "shape", "bound"),
    [
        (many_small, (4,), "launch"),
        (few_large, (8192, 8192), "memory"),
        (products, (8192, 8192), "compute"),
        (attention, (4, 16, 4096, 128), "compute"),
    ],
)
def test_what_a_target_is_bound_by(
    monkeypatch: pytest.MonkeyPatch, fn: Any, shape: tuple[int, ...], bound: str
) -> None:
    found = arm(monkeypatch, fn, shape, train=False).probe().probe
    assert found["bound"] == bound, found
    assert found["unknown"] == {} and found["host_syncs"] == 0
    assert (found["busy_share"] < 0.8) is (bound == "launch")
    assert found["matmul_share"] == pytest.approx(float(bound == "compute"), abs=0.2)
    assert 0 < found["kernel_ms"] <= found["device_ms"]
    if fn is many_small:
        assert found["kernels_per_call"] == found["ops_per_call"] == 200
    if fn is products:
        assert found["flops_per_call"] == 4 * 2 * 8192**3
    assert found["mean_op_us"] is None and found["trivial_op_us"] is None


@pytest.mark.parametrize(("fn", "syncs"), [(looks, 3), (looks_at_nothing, 0)])
def test_waits_for_the_gpu_are_counted(
    monkeypatch: pytest.MonkeyPatch, fn: Any, syncs: int
) -> None:
    found = arm(monkeypatch, fn, (4,), train=False).probe().probe
    assert found["host_syncs"] == syncs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)]
        self.blocks = nn.ModuleList(parts)
        self.cuda().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_a_training_step_is_seen_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = arm(monkeypatch, Net, (64, 256), train=False).probe().probe
    step = arm(monkeypatch, Net, (64, 256), train=True).probe().probe
    assert forward["blocks"] == step["blocks"] == {"Sequential": 3}
    # The first product's input needs no gradient: 3 forward, 5 backward.
    assert forward["flops_per_call"] == 3 * 2 * 64 * 256 * 256
    assert step["flops_per_call"] == 8 * 2 * 64 * 256 * 256
    assert step["kernels_per_call"] > forward["kernels_per_call"]
    assert step["ops_per_call"] > forward["ops_per_call"]


def test_the_memory_of_what_was_thrown_away_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = arm(monkeypatch, Net, (64, 256), train=False)
    before = torch.cuda.memory_allocated()
    made.probe()
    assert torch.cuda.memory_allocated() <= before + 2**20
    assert made._pass() > 0
