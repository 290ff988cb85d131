"""Facts about a target in eager: what bounds it, what it is made of, what varies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchproof.measure import model_facts, profiling
from torchproof.measure.model_facts import Subject, bottleneck, probe
from torchproof.measure.specs import EAGER, StrategyJob
from torchproof.measure.strategy_worker import StrategyWorker
from torchproof.records.run import Frame
from torchproof.targets import calls
from torchproof.targets.job import Job
from torchproof.targets.target import Loaded, Target

Made = tuple[Any, list[Any]]
RUN = Job(Target("file.py:make", "factory", "file.py"), device="cpu")


def subject(make: Callable[[], Made]) -> Subject:
    """A target on the CPU, its passes timed as a worker does."""

    def anew() -> Loaded:
        fn, given = make()
        return Loaded(fn, given, None, Frame("file.py", 1, "make"))

    loaded, clock = anew(), profiling.Clock("cpu")

    def run() -> float:
        with torch.no_grad():
            return sum(
                clock.milliseconds(lambda c=c: calls.invoke(loaded.fn, c, train=False))
                for c in loaded.calls
            )

    run()
    return Subject(loaded, "cpu", run, anew)


def probed(make: Callable[[], Made]) -> dict[str, Any]:
    """The facts as they are saved."""
    return dict(json.loads(json.dumps(probe(subject(make)))))


# -- what it is bound by ---------------------------------------------------------------


def products(x: Tensor) -> Tensor:
    return x @ x @ x


def test_products_of_matrices_are_seen_by_the_profiler() -> None:
    found = probed(lambda: (products, [(torch.rand(400, 400),)]))
    assert found["matmul_share"] == pytest.approx(1.0, abs=0.2)
    assert 0 < found["operator_share"] <= 1 and found["mean_op_us"] > 0
    assert (found["calls"], found["unknown"]) == (1, {}) and found["step_ms"] > 0
    on_gpu = ("busy_share", "kernels_per_call", "device_ms", "host_syncs")
    assert [found[name] for name in on_gpu] == [None] * 4


FACTS = {
    "cuda": {"busy_share": 0.95, "matmul_share": 0.7, "kernels_per_call": 40.0},
    "cpu": {"mean_op_us": 90.0, "operator_share": 0.9, "matmul_share": 0.7},
}


@pytest.mark.parametrize(
    ("device", "changed", "bound", "why"),
    [
        ("cuda", {}, "compute", r"\b95%.*\b70%"),
        ("cuda", {"matmul_share": 0.3}, "memory", r"\b30%"),
        ("cuda", {"busy_share": 0.79}, "launch", r"\b79%.*\b40 kernels"),
        ("cuda", {"busy_share": 0.8}, "compute", r"\b80%"),
        ("cuda", {"busy_share": None}, None, "kernels"),
        ("cuda", {"matmul_share": None}, None, "known"),
        ("cpu", {}, "compute", r"\b90\.0 us.*\b70%"),
        ("cpu", {"matmul_share": 0.3}, "memory", r"\b30%"),
        ("cpu", {"mean_op_us": 9.0}, "launch", r"9\.0 us"),
        ("cpu", {"operator_share": 0.4}, None, r"\b40%.*operators"),
        ("cpu", {"operator_share": None}, None, "operators"),
        ("cpu", {"mean_op_us": None}, None, "known"),
    ],
)
def test_what_bounds_a_step(
    device: str, changed: dict[str, Any], bound: str | None, why: str
) -> None:
    kind, reason = bottleneck(device, FACTS[device] | changed)
    assert kind == bound and reason is not None and re.search(why, reason)


# -- what a call does ------------------------------------------------------------------


def test_operations_are_counted_per_call() -> None:
    def twice(x: Tensor, more: bool) -> Tensor:
        x = nn.functional.linear(x, torch.ones(3, 4))  # t, mm
        return x + 1 if more else x

    ones = torch.ones(2, 4)
    one = subject(lambda: (twice, [(ones, True), (ones, False)]))
    # ones, t and mm in each, add in one of them
    assert [*model_facts.counted(one)] == [{"ops_per_call": 3.5}]


def test_what_compiles_itself_still_does_afterwards() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    inner = torch.compile(lambda x: x.sin() + 1, backend=backend, fullgraph=True)
    one = subject(lambda: (lambda x: inner(x) * 2, [(torch.ones(3),)]))
    [counted] = model_facts.counted(one)
    assert counted == {"ops_per_call": 3}
    assert one.run() > 0 and compiled == [1]


def test_products_are_known_by_name() -> None:
    products = ("aten::mm", "aten::_scaled_mm", "aten::convolution_backward")
    products += ("flash_attn::varlen_attention",)
    products += ("aten::_scaled_dot_product_flash_attention_for_cpu_backward",)
    others = ("aten::upsample_bilinear2d", "aten::resolve_conj", "aten::linspace")
    others += ("aten::_convert_indices_from_coo_to_csr",)
    products += ("nvjet_128x256", "flash_fwd_kernel")  # kernels
    others += ("vectorized_elementwise_kernel",)
    found = [model_facts._is_product(name) for name in products + others]
    assert found == [True] * len(products) + [False] * len(others)


def test_kernels_are_products_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(name: str, start: float, us: float) -> Any:
        span = SimpleNamespace(start=start, end=start + us, elapsed_us=lambda: us)
        on = {"device_type": "DeviceType.CUDA", "is_user_annotation": False}
        return SimpleNamespace(name=name, time_range=span, **on)

    def profiled(device: str, run: Callable[[], Any]) -> list[Any]:
        run()
        kernels = kernel("nvjet_128x256", 0, 30.0), kernel("elementwise", 30, 10.0)
        return [*kernels, kernel("Memcpy DtoH", 50, 5.0)]

    monkeypatch.setattr(profiling, "profiler_events", profiled)
    monkeypatch.setattr(model_facts, "_PROFILED_PASSES", 1)
    found: dict[str, Any] = {}
    for facts in model_facts.profiled(replace(subject(net), device="cuda")):
        found |= facts
    expected = {"kernels_per_call": 1.0, "device_ms": 0.0225, "matmul_share": 0.75}
    assert found == pytest.approx(expected)  # of one of the two calls


# -- what it is made of ----------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.inner(self.norm(x)))


class Net(nn.Module):
    """Blocks in an encoder, and parts that are no candidates of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(8, 40)  # large, but one operation
        self.unused = nn.Sequential(nn.Linear(8, 30), nn.ReLU())
        self.small = nn.Sequential(nn.Linear(8, 1), nn.ReLU())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        x = self.encode(x)
        if x.shape[0] > 1000:
            x = self.widened(x)
        return self.top(x)

    def encode(self, x: Tensor) -> Tensor:
        return self.through(x) + self.small(x)

    def through(self, x: Tensor) -> Tensor:
        return self.encoder(x)

    def widened(self, x: Tensor) -> Tensor:
        return self.unused(x)

    def top(self, x: Tensor) -> Tensor:
        return self.head(x).softmax(-1)


def net() -> Made:
    return Net(), [(torch.rand(2, 8),), (torch.rand(5, 8),)]


def made_of(make: Callable[[], Made]) -> dict[str, Any]:
    """The part of the facts that takes no profiling."""
    found: dict[str, Any] = {}
    for look in (model_facts.structure, model_facts.shapes):
        for facts in look(subject(make)):
            found |= facts
    return dict(json.loads(json.dumps(found)))


def test_blocks_parts_and_sizes() -> None:
    found = made_of(net)
    assert found["blocks"] == {"Block": 3}
    # encode holds encoder and small, top the head; the rest is small or never called
    assert found["core"] == ["top", "encode", "encoder"]
    assert found["varying"] == [["argument 0", [0]]]
    assert found["fingerprint"]["class"] == "Net"


def test_functions_and_repeated_blocks_have_no_parts_to_compile_alone() -> None:
    found = made_of(lambda: (torch.relu, [(torch.rand(2),)]))
    assert (found["blocks"], found["core"]) == ({}, [])
    found = made_of(lambda: (nn.Sequential(Block(), Block()), [(torch.rand(2, 8),)]))
    assert found["blocks"] == {"Block": 2} and found["core"] == []


def test_arguments_that_vary_have_names() -> None:
    def given(batch: int, length: int) -> dict[str, Any]:
        return {"tokens": torch.ones(batch, length), "states": [0, torch.ones(length)]}

    one = subject(lambda: (lambda tokens, states: tokens, [given(2, 3), given(2, 5)]))
    [found] = model_facts.shapes(one)
    assert found == {"varying": (("tokens", (1,)), ("states.1", (0,)))}


# -- around it -------------------------------------------------------------------------


def test_what_fails_is_told_and_the_rest_is_known() -> None:
    made: list[int] = []

    def once() -> Made:
        made.append(1)
        if len(made) > 1:
            raise MemoryError("full")
        return net()

    found = probed(once)
    lost = {"fingerprint", "blocks", "core"}
    assert found["unknown"] == dict.fromkeys(lost, "MemoryError: full")
    assert all(found[name] is None for name in lost)
    assert found["ops_per_call"] > 0 and found["varying"] == [["argument 0", [0]]]


def test_a_worker_probes_the_backward_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(job: Job) -> Loaded:
        return Loaded(*net(), None, Frame("file.py", 1, "make"))

    monkeypatch.setattr(calls, "fresh", fresh)
    worker = StrategyWorker(StrategyJob(EAGER, replace(RUN, train=True)))
    worker._load({})
    worker.fn = worker.loaded.fn
    [forward] = model_facts.counted(subject(net))
    assert worker.probe().probe["ops_per_call"] > 2 * forward["ops_per_call"] > 0
