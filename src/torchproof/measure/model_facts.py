"""Measures cheap facts about a target in eager, by which `tune` chooses candidates.

Takes a loaded target, a function that runs its calls, and one that builds it again.
Returns plain JSON. An unknown fact is null; `unknown` says why a measurement failed.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
import statistics
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from torchproof.measure import profiling
from torchproof.measure.operation_count import OperationCounter
from torchproof.records.shapes import Probe
from torchproof.strategies import (
    NotApplicable,
    Sizes,
    fingerprint,
    parse,
    planning,
    regions,
)
from torchproof.targets import Loaded, calls

_MOST_PASSES = 20
_PROFILED_PASSES = 6  # reading profiler events takes longer than running
_PASSES_S = 0.3
_BUSY = 0.8  # of a step; a GPU that is busy for less waits for launches
_MATMULS = 0.5  # of the time; with more than that, a model is compute-bound
_SMALL_OP_US = 20.0  # on a CPU, under the profiler: mostly the price of a call
_INSIDE = 0.5  # of a step; with less inside operators, they do not tell the bottleneck
_CORE_SHARE = 0.2  # of the parameters; a smaller part is not worth compiling alone
_CORES = 4

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


@dataclass(frozen=True)
class Subject:
    """A warm target; `run` runs all its calls and returns the milliseconds."""

    loaded: Loaded
    device: str
    run: Callable[[], float]
    rebuild: Callable[[], Loaded]
    # Whether a rank wants another pass, as all ranks decide it together.
    goes_on: Callable[[bool], bool] = bool

    @property
    def count(self) -> int:
        return len(self.loaded.calls)


def probe(subject: Subject) -> Probe:
    """Returns the facts about a target."""
    facts = cast(Probe, dict.fromkeys(Probe.__annotations__))
    facts["calls"] = subject.count
    unknown: dict[str, str] = {}
    for names, measure in _PROBES.items():
        try:
            for new_facts in measure(subject):
                facts |= new_facts
        except Exception as error:  # the other facts are still of use
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            unknown |= {name: reason for name in names if facts.get(name) is None}
    gc.collect()  # the targets that were discarded
    if subject.device == "cuda":
        torch.cuda.empty_cache()
        if facts["device_ms"] and facts["step_ms"]:
            facts["busy_share"] = min(1.0, facts["device_ms"] / facts["step_ms"])
    elif facts["ops_per_call"] and facts["operators_us"]:
        facts["mean_op_us"] = facts["operators_us"] / facts["ops_per_call"]
    facts["bound"], facts["bound_why"] = bottleneck(subject.device, facts)
    facts["unknown"] = unknown
    return facts


# -- the cost of a call ----------------------------------------------------------------


def counted(subject: Subject) -> Iterator[Probe]:
    # Operations that compile themselves, such as FlexAttention, fail under a mode.
    with torch.compiler.set_stance("force_eager"), OperationCounter() as operations:
        subject.run()
    yield {"ops_per_call": operations.count / subject.count}
    if subject.device == "cuda":
        yield {"host_syncs": operations.to_host / subject.count}


def _passes(subject: Subject, most: int) -> list[float]:
    """Returns the milliseconds of several passes, or of one if it takes long."""
    times: list[float] = []
    end = time.monotonic() + _PASSES_S
    while not times or (len(times) < most and subject.goes_on(time.monotonic() < end)):
        times.append(subject.run())
    return times


def timed(subject: Subject) -> Iterator[Probe]:
    yield {"step_ms": statistics.median(_passes(subject, _MOST_PASSES)) / subject.count}


def profiled(subject: Subject) -> Iterator[Probe]:
    """Breaks down the time of a call with torch's profiler."""
    times: list[float] = []
    events = profiling.profiler_events(
        subject.device, lambda: times.extend(_passes(subject, _PROFILED_PASSES))
    )
    steps = len(times) * subject.count
    if subject.device == "cuda":
        device = profiling.device_events(events)
        kernels = [event for event in device if profiling.is_kernel(event)]
        yield {
            "kernels_per_call": len(kernels) / steps,
            "device_ms": profiling.covered_us(device) / 1e3 / steps,
        }
        spent = [(e.name, e.time_range.elapsed_us()) for e in kernels]
    else:
        operators = [event for event in events if _OPERATOR.fullmatch(event.name)]
        spent = [(e.name, e.self_cpu_time_total) for e in operators]
        covered_ms = profiling.covered_us(operators) / 1e3
        if operators:
            yield {
                "operators_us": sum(us for _, us in spent) / steps,
                "operator_share": min(1.0, covered_ms / sum(times)),
            }
    if total := sum(us for _, us in spent):
        products = sum(us for name, us in spent if _is_product(name))
        yield {"matmul_share": products / total}


def _is_product(name: str) -> bool:
    """Whether an operator or a kernel computes products, by its name."""
    if _OPERATOR.fullmatch(name):
        return _PRODUCT.fullmatch(name.partition("::")[2]) is not None
    return _PRODUCT_KERNEL.search(name) is not None


# -- the bottleneck --------------------------------------------------------------------


def bottleneck(device: str, facts: Probe) -> tuple[str | None, str | None]:
    """Returns what bounds the time of a step, and the numbers that show it."""
    if device == "cuda":
        return _bottleneck_on_gpu(facts)
    mean = facts["mean_op_us"]
    if mean is None:
        return None, "the cost of an operation is not known"
    reason = f"an operation takes {mean:.1f} us on average"
    if mean <= _SMALL_OP_US:
        return "launch", reason
    inside = facts["operator_share"]
    if inside is None:
        return None, "the profiler saw no operators"
    if inside < _INSIDE:
        return None, f"only {inside:.0%} of the step is spent inside operators"
    return _by_products(facts, reason)


def _bottleneck_on_gpu(facts: Probe) -> tuple[str | None, str | None]:
    busy = facts["busy_share"]
    if busy is None:
        return None, "the profiler saw no kernels"
    reason = f"the GPU is busy for {busy:.0%} of the step"
    if busy < _BUSY:
        return (
            "launch",
            f"{reason}, with {facts['kernels_per_call']:.0f} kernels per call",
        )
    return _by_products(facts, reason)


def _by_products(facts: Probe, reason: str) -> tuple[str | None, str | None]:
    share = facts["matmul_share"]
    if share is None:
        return None, f"{reason}; the share of matrix products is not known"
    kind = "compute" if share >= _MATMULS else "memory"
    where = "matrix products, convolutions and attention"
    return kind, f"{reason}; {share:.0%} of the time goes to {where}"


# -- what a target is made of ----------------------------------------------------------


def structure(subject: Subject) -> Iterator[Probe]:
    """Inspects a new target before its calls and while they run."""
    loaded = subject.rebuild()
    yield {"fingerprint": fingerprint(loaded.fn)}  # calls may add buffers
    root = loaded.fn if isinstance(loaded.fn, nn.Module) else None
    recorder = CallRecorder(root) if root is not None else None
    try:
        plan = planning.plan(
            parse("regional"),
            loaded.fn,
            loaded.calls,
            before=lambda index: calls.before(loaded, index),
        )
        blocks = {site.name: site.paths for site in plan.regions}
    except NotApplicable:
        blocks = {}
    yield {"blocks": {name: len(paths) for name, paths in blocks.items()}}
    repeated = {path for paths in blocks.values() for path in paths}
    yield {"core": recorder.cores(repeated) if recorder else ()}


def shapes(subject: Subject) -> Iterator[Probe]:
    """Finds which sizes vary from call to call."""
    sizes = Sizes()
    for call in subject.loaded.calls:
        sizes.note(*((), call) if isinstance(call, dict) else (call, {}))
    yield {"varying": tuple((_argument_name(p), w) for p, w in sizes.varying.items())}


def _argument_name(path: tuple[int | str, ...]) -> str:
    """Returns `tokens`, `states.1`, or `argument 0` if there is no name."""
    first = path[0] if isinstance(path[0], str) else f"argument {path[0]}"
    return ".".join(map(str, (first, *path[1:])))


class CallRecorder:
    """Records which modules of a target are called, and by which methods of its root.

    Its hooks stay in the target, so the target must be discarded.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.modules: set[nn.Module] = set()
        self.methods: dict[str, set[nn.Module]] = {}  # the modules that each calls
        self._method: str | None = None  # that runs; other methods are parts of it
        for module in root.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                module.register_forward_pre_hook(self._note_module)
        scripted = isinstance(root, torch.jit.ScriptModule)
        for name, _ in inspect.getmembers(type(root), inspect.isfunction):
            if not (scripted or hasattr(nn.Module, name)):
                setattr(root, name, self._recording(name, getattr(root, name)))

    def _note_module(self, module: nn.Module, inputs: Any) -> None:
        self.modules.add(module)
        if self._method is not None:
            self.methods[self._method].add(module)

    def _recording(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def recording(*args: Any, **kwargs: Any) -> Any:
            if self._method is not None:
                return method(*args, **kwargs)
            self.methods.setdefault(name, set())
            self._method = name
            try:
                return method(*args, **kwargs)
            finally:
                self._method = None

        return recording

    def cores(self, repeated: Set[str]) -> tuple[str, ...]:
        """Returns parts and methods with many parameters, the largest first.

        Parts in `repeated` are left out; they are compiled block by block.
        """
        whole = regions.parameters_in([self.root])
        shares = {
            name: share
            for name, modules in self._called_parts()
            if (share := regions.parameters_in(modules) / whole) >= _CORE_SHARE
            and name not in repeated
        }
        return tuple(sorted(shares, key=lambda name: -shares[name])[:_CORES])

    def _called_parts(self) -> Iterator[tuple[str, list[nn.Module]]]:
        """Yields the called children and methods, with the modules that each uses."""
        for name, part in self.root.named_children():
            if part in self.modules and not _is_single(part):
                yield name, [part]
        for name in sorted(self.methods):
            yield name, [*self.methods[name]]


def _is_single(part: nn.Module) -> bool:
    """Whether the part is a single operation, which has nothing to fuse."""
    is_leaf = next(part.children(), None) is None
    return is_leaf and type(part).__module__.startswith("torch.nn.")


# The facts that each function yields; facts before a failure are kept.
_PROBES: dict[tuple[str, ...], Callable[[Subject], Iterator[Probe]]] = {
    ("step_ms",): timed,
    ("ops_per_call", "host_syncs"): counted,
    (
        "kernels_per_call",
        "device_ms",
        "matmul_share",
        "operator_share",
        "operators_us",
    ): profiled,
    ("varying",): shapes,
    ("fingerprint", "blocks", "core"): structure,
}
