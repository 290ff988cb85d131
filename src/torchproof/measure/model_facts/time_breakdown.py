"""The cost of a call in eager: operations, kernels, and a breakdown of its time."""

from __future__ import annotations

import bisect
import functools
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchproof.measure import profiling
from torchproof.measure.model_facts.structure import Subject
from torchproof.measure.operation_count import OperationCounter

_MOST_PASSES = 20
_PROFILED_PASSES = 6  # reading profiler events takes longer than running
_PASSES_S = 0.3
_TRIVIAL_ROUNDS = 30
_PASS = "torchproof: a pass"

_OPERATOR = re.compile(r"\w+::\w+")
_PRODUCT = re.compile(
    r"(.*_)?(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|vdot)(_.*)?"
    r"|.*(matmul|attention|rnn|lstm|gru).*|.*conv(olution|_|\d).*"
    r"|(mkldnn_|_mkldnn_)?linear(_.*)?"
)
_PRODUCT_KERNEL = re.compile(
    r"gemm|gemv|nvjet|cutlass|xmma|flash|fmha|attention|attn|sdpa|conv|matmul",
    re.IGNORECASE,
)


def counted(subject: Subject) -> Iterator[dict[str, Any]]:
    # Operations that compile themselves, such as FlexAttention, fail under a mode.
    with torch.compiler.set_stance("force_eager"), OperationCounter() as operations:
        subject.run()
    yield {"ops_per_call": operations.count / subject.count}
    yield {"flops_per_call": sum(operations.by_type.values()) / subject.count}
    if subject.device == "cuda":
        yield {"host_syncs": operations.to_host / subject.count}


def _passes(
    run: Callable[[], float], most: int, goes_on: Callable[[bool], bool]
) -> list[float]:
    """Returns the milliseconds of several passes, or of one if it takes long."""
    times: list[float] = []
    end = time.monotonic() + _PASSES_S
    while not times or (len(times) < most and goes_on(time.monotonic() < end)):
        times.append(run())
    return times


def timed(subject: Subject) -> Iterator[dict[str, Any]]:
    times = _passes(subject.run, _MOST_PASSES, subject.goes_on)
    yield {"step_ms": statistics.median(times) / subject.count}


def profiled(subject: Subject) -> Iterator[dict[str, Any]]:
    """Breaks down the time of a call with torch's profiler."""
    times: list[float] = []
    on_gpu = subject.device == "cuda"
    one_pass = subject.run if on_gpu else _marked(subject.run)

    def run() -> None:
        times.extend(_passes(one_pass, _PROFILED_PASSES, subject.goes_on))

    if on_gpu:
        events = profiling.profiler_events(subject.device, run)
        yield _on_gpu(events, len(times) * subject.count)
        return
    spent = OperatorTime.of(run)
    if spent.us:
        yield {
            "operators_us": spent.us / subject.count,
            "matmul_share": spent.products_us / spent.us,
            "operator_share": min(1.0, spent.covered_us / 1e3 / sum(times)),
        }


@dataclass(frozen=True)
class OperatorTime:
    """The time of the operators of a pass, on a CPU.

    Each operator counts with its minimum over several passes: other programs would make
    small operators look large.
    """

    us: float
    products_us: float
    covered_us: float  # of all passes

    @classmethod
    def of(cls, run: Callable[[], Any]) -> OperatorTime:
        """Profiles `run`, whose passes are `_marked`."""
        events = profiling.profiler_events("cpu", run)
        operators = [event for event in events if _OPERATOR.fullmatch(event.name)]
        begins = [e.time_range.start for e in events if e.name == _PASS]
        least = _least(operators, sorted(begins))
        products = sum(us for name, us in least if _is_product(name))
        total = sum(us for _, us in least)
        return cls(total, products, profiling.covered_us(operators))


def _marked(run: Callable[[], Any]) -> Callable[[], Any]:
    def marked() -> Any:
        with torch.profiler.record_function(_PASS):
            return run()

    return marked


def _least(operators: list[Any], begins: list[float]) -> list[tuple[str, float]]:
    """Returns each operator of a pass with its minimum self time over all passes.

    If the passes run different operators, it returns the shortest pass.
    """
    passes: dict[int, list[tuple[str, float]]] = defaultdict(list)
    order = sorted(operators, key=lambda e: (e.time_range.start, -e.time_range.end))
    for event in order:
        number = bisect.bisect_right(begins, event.time_range.start)
        passes[number].append((event.name, event.self_cpu_time_total))
    if not passes:
        return []
    kinds = {tuple(name for name, _ in each) for each in passes.values()}
    if len(kinds) > 1:
        return min(passes.values(), key=lambda each: sum(us for _, us in each))
    columns = zip(*passes.values(), strict=True)
    return [min(column, key=lambda each: each[1]) for column in columns]


def _on_gpu(events: list[Any], steps: int) -> dict[str, Any]:
    device = profiling.device_events(events)
    kernels = [event for event in device if profiling.is_kernel(event)]
    facts: dict[str, Any] = {
        "kernels_per_call": len(kernels) / steps,
        "kernel_ms": profiling.covered_us(kernels) / 1e3 / steps,
        "device_ms": profiling.covered_us(device) / 1e3 / steps,
    }
    total = sum(event.time_range.elapsed_us() for event in kernels)
    if total:
        facts["matmul_share"] = min(1.0, _products_us(events, kernels) / total)
    return facts


def _products_us(events: list[Any], kernels: list[Any]) -> float:
    """Returns the time of products, by launching operator, else by kernel name."""
    unexplained_us: Counter[str] = Counter()
    for kernel in kernels:
        unexplained_us[kernel.name] += kernel.time_range.elapsed_us()
    products = 0.0
    for event in events:
        for kernel in event.kernels if _OPERATOR.fullmatch(event.name) else ():
            unexplained_us[kernel.name] -= kernel.duration
            if _is_product(event.name):
                products += kernel.duration
    rest = {name: us for name, us in unexplained_us.items() if us > 0}
    return products + sum(rest[n] for n in rest if _PRODUCT_KERNEL.search(n))


def _is_product(operator: str) -> bool:
    name = operator.partition("::")[2]
    return _PRODUCT.fullmatch(name) is not None


def trivial(subject: Subject) -> Iterator[dict[str, Any]]:
    """Measures the cost of an operation on almost no data."""
    if subject.device == "cuda":
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        inputs = torch.rand(1, 8), torch.rand(8, 8), torch.rand(8)
        small = functools.partial(_small, *inputs)
        with OperationCounter() as operations:
            small()
        spent = OperatorTime.of(
            lambda: [_marked(small)() for _ in range(_TRIVIAL_ROUNDS)]
        )
    yield {"trivial_op_us": spent.us / operations.count}


def _small(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Runs a mix of typical operations."""
    y = nn.functional.layer_norm(x, (8,), bias, bias)
    y = nn.functional.linear(y, weight, bias)
    y = torch.relu(y.view(1, 2, 4).transpose(1, 2)) * 2
    x + y.reshape(1, 8)
