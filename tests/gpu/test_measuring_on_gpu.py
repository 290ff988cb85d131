"""Measurements on a GPU: workers of strategies, and what bounds a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import torchproof
from torch import Tensor, nn
from torch.testing import assert_close

from torchproof.measure import operation_count
from torchproof.measure.device_peaks import peaks_of
<<<<<<< HEAD
from torchproof.measure.replies import Facts
=======
from torchproof.measure.numerics import reference
from torchproof.measure.numerics.reference import Reference
>>>>>>> h-runtime
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


<<<<<<< HEAD
# -- strategies with a graph ----------------------------------------------------------


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Part(), Part(), Part())
        self.head = nn.Linear(64, 8)
        self.cuda()

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.blocks(x))
        return answer


def trained(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> tuple[StrategyWorker, Facts, list[dict[str, Any]]]:
    """A training worker after its first pass and some more, and outputs of two."""
    made = worker(monkeypatch, Net, [(4, 64), (9, 64)], name=name, train=True)
    paths = [str(folder / f"{number}.pt") for number in range(2)]
    facts = made.prepare(paths[0])
    for _ in range(20):
        made._pass()
    made.save_outputs(paths[1])
    saved = [torch.load(path, weights_only=False) for path in paths]
    return made, facts, [outputs for _, outputs in saved]


def test_a_strategy_with_a_graph_has_the_outputs_of_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, _, plain = trained(monkeypatch, tmp_path, "eager")
    made, facts, replayed = trained(monkeypatch, tmp_path, "regional+graph")
    assert not facts.fell_back and not made._fell_back()
    assert facts.first_call_s >= made.fn.status().buckets[0].record_s
    assert made.fn.status().replays >= 2 * (1 + 20 + 1)
    for mine, theirs in zip(replayed, plain, strict=True):
        assert mine.keys() == theirs.keys()
        assert any("gradient of blocks.0.inner.weight" in label for label in mine)
        for label, value in theirs.items():
            if isinstance(value, Tensor):
                assert_close(mine[label], value, rtol=1e-3, atol=1e-6, msg=label)
=======
# -- the float64 reference ------------------------------------------------------------


class Attention(nn.Module):
    """Attention by the fused kernels, dropout, and a cast inside the model."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(256), dropout
        self.mix, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(self.norm(x)).view(*x.shape[:2], 3, 4, 64)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(x.shape)).float()
        return x + F.dropout(y, self.dropout).to(x.dtype)


def load(dropout: float, kind: torch.dtype) -> Loaded:
    seed()
    model = Attention(dropout).to("cuda", kind)
    x = torch.randn(4, 128, 256, device="cuda", dtype=kind)
    return Loaded(model, [(x,)], None, SimpleNamespace())


def refer(dropout: float, kind: torch.dtype) -> Reference:
    return reference(
        lambda: load(dropout, kind), lambda made: answers(made, made.fn, train=True)
    )


@pytest.mark.parametrize(
    ("dropout", "kind"), [(0.0, torch.float32), (0.3, torch.bfloat16)], ids=str
)
def test_the_reference_is_float64_with_the_same_dropout(
    dropout: float, kind: torch.dtype
) -> None:
    found = refer(dropout, kind)
    assert found.exact is not None, found.why
    assert found.draws == (dropout > 0)
    for label, value in found.exact.items():
        if not isinstance(value, torch.Tensor):
            continue  # the form of an output
        if "argument" not in label:
            assert value.dtype == torch.float64
        eager = found.eager[label].double()
        off = 0.2 if kind is torch.bfloat16 else 1e-3
        assert_close(
            eager, value.double(), rtol=off, atol=off * float(eager.abs().max())
        )
    if not dropout:
        made = load(dropout, kind)
        compiled = answers(made, torch.compile(made.fn), train=True)
        assert found.compare(compiled).verdict in ("same", "rounding")
        compiled["call 0: output"][1, 2, 3] += 1
        assert found.compare(compiled).verdict == "wrong"
        plain = load(dropout, kind)
        plain.fn.double()
        plain.calls[0] = (plain.calls[0][0].double(),)
        # Called in float64 the model still casts to float32 inside, the reference not.
        for label, value in answers(plain, plain.fn, train=True).items():
            if isinstance(value, torch.Tensor):
                assert_close(found.exact[label], value, rtol=1e-5, atol=1e-7)
>>>>>>> h-runtime


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
