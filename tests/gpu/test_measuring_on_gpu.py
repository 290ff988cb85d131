"""Measurements on a GPU: workers of strategies, and what bounds a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import torchproof
from torch import Tensor, nn

from torchproof.measure import operation_count
from torchproof.measure.device_peaks import peaks_of
from torchproof.measure.specs import StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records.run import Frame
from torchproof.strategies.strategy import parse
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

# What torch recommends on a GPU is no error of the program under test.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def worker(
    monkeypatch: pytest.MonkeyPatch,
    fn: Any,
    shapes: list[tuple[int, ...]],
    *,
    name: str = "eager",
    train: bool = False,
    dtype: torch.dtype = torch.float32,
) -> StrategyWorker:
    """One that measures `fn`, with a call for each shape, before its first pass."""

    def fresh(job: Job) -> Loaded:
        calls.seed()
        given = [(torch.rand(*each, device="cuda", dtype=dtype),) for each in shapes]
        made = fn() if isinstance(fn, type) else fn
        return Loaded(made, given, None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    target = Target("file.py:make", "factory", "file.py")
    return StrategyWorker(
        StrategyJob(parse(name), Job(target, train=train, device="cuda"))
    )


# -- what a model is bound by ----------------------------------------------------------


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


def probed(
    monkeypatch: pytest.MonkeyPatch, fn: Any, shape: tuple[int, ...], *, train: bool
) -> Any:
    dtype = torch.bfloat16 if len(shape) > 1 else torch.float32
    made = worker(monkeypatch, fn, [shape] * 2, train=train, dtype=dtype)
    made.prepare(None)
    for _ in range(5):
        made._pass()
    before = torch.cuda.memory_allocated()
    found = made.probe().probe
    if isinstance(fn, type):  # the memory of what it made is given back
        assert torch.cuda.memory_allocated() <= before + 2**20
    return found


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
    found = probed(monkeypatch, fn, shape, train=False)
    assert found["bound"] == bound, found
    assert found["unknown"] == {} and found["host_syncs"] == 0
    assert (found["busy_share"] < 0.8) is (bound == "launch")
    assert found["matmul_share"] == pytest.approx(float(bound == "compute"), abs=0.2)
    assert found["device_ms"] > 0
    if fn is many_small:
        assert found["kernels_per_call"] == found["ops_per_call"] == 200
    assert found["mean_op_us"] is None


def test_waits_for_the_gpu_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for fn, syncs in ((looks, 3), (looks_at_nothing, 0)):
        assert probed(monkeypatch, fn, (4,), train=False)["host_syncs"] == syncs


class Layers(nn.Module):
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
    forward = probed(monkeypatch, Layers, (64, 256), train=False)
    step = probed(monkeypatch, Layers, (64, 256), train=True)
    assert forward["blocks"] == step["blocks"] == {"Sequential": 3}
    assert step["kernels_per_call"] > forward["kernels_per_call"]
    assert step["ops_per_call"] > forward["ops_per_call"]


# -- the share of a GPU's peak --------------------------------------------------------

_SIZE = 4096
SOURCE = f"""\
import torch

def make():
    weight = torch.randn({_SIZE}, {_SIZE}, device="cuda", dtype=torch.bfloat16)
    def step(x):
        for _ in range(8):
            x = x @ weight
        return x
    return step, [(torch.randn_like(weight),)]
"""


def test_bench_reports_utilisation(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    flags = ("--strategies", "full", "--repeats", "1", "--effort", "quick")
    done = torchproof(
        "bench", "model.py:make", *flags, "--format", "json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = json.loads(done.stdout)
    for row in run["measurements"]:
        assert row["flops"]["by_type"] == {"bfloat16": 8 * 2 * _SIZE**3}
        assert row["flops"]["not_counted"] == []
        if peaks_of(run["environment"]["gpu"]):
            assert 0 < row["mfu"] < 1
        else:
            assert row["mfu"] is None and "is not known" in row["flops"]["why"]


def test_the_type_follows_the_precision_of_float32() -> None:
    x = torch.randn(64, 64, device="cuda")
    convolution = torch.nn.Conv2d(1, 1, 3, device="cuda")

    def types() -> list[str]:
        return [*operation_count.count(lambda: x @ x, 1).by_type]

    before = torch.get_float32_matmul_precision()
    able = torch.cuda.get_device_capability()[0] >= 8
    try:
        torch.set_float32_matmul_precision("highest")
        assert types() == ["float32"]
        torch.set_float32_matmul_precision("high")
        assert types() == (["tf32"] if able else ["float32"])
    finally:
        torch.set_float32_matmul_precision(before)
    image = torch.randn(1, 1, 8, 8, device="cuda")
    counted = operation_count.count(lambda: convolution(image), 1)
    assert [*counted.by_type] == (["tf32"] if able else ["float32"])
