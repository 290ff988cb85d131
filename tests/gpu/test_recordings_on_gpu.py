"""What becomes of CUDA graphs, watched on a GPU with torch's own graph trees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchproof.checking import rules
from torchproof.observe.audit import events as audit_events
from torchproof.observe.audit import running
from torchproof.observe.audit.recordings import Recordings
from torchproof.observe.audit.syncs import Syncs
from torchproof.records.run import Finding, Observation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's, about what is watched here
]


class Seen:
    """What the watchers wrote while a program ran."""

    def __init__(self, program: Callable[[], object]) -> None:
        self.entries: list[dict[str, Any]] = []
        torch._dynamo.reset()
        with Recordings(self._write), Syncs(self._write):
            program()
        events = tuple(audit_events.events(self.entries))
        found = rules.check(Observation(events, {}))
        self.findings = [f for f in found if f.code.startswith(("CG", "HS"))]
        self.counts = audit_events.counts(self.entries)

    def _write(self, kind: str, **values: Any) -> None:
        self.entries.append({"kind": kind, **values})

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings]

    @property
    def only(self) -> Finding:
        assert len(self.findings) == 1, [(f.code, f.message) for f in self.findings]
        return self.findings[0]


@pytest.fixture(autouse=True)
def no_graphs_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    torch.cuda.synchronize()


def compiled(fn: Any, **more: Any) -> Any:
    return torch.compile(fn, mode="reduce-overhead", **more)


def repeated(step: Any, *args: Any, times: int) -> Seen:
    """What is seen of so many calls without gradients."""

    def program() -> None:
        with torch.no_grad():
            for _ in range(times):
                step(*args)

    return Seen(program)


def source(finding: Finding) -> str:
    return (finding.source or "").strip()


def test_a_clean_model_is_recorded_once_and_replayed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    step = compiled(model)
    x = torch.randn(8, 64, device="cuda")

    seen = repeated(step, x, times=6)
    assert seen.codes == []
    assert seen.counts["cudagraph_skips"] == 0
    assert seen.counts["cudagraph_recordings"] == 1
    assert seen.counts["cudagraph_replays"] == 4
    assert (seen.counts["cudagraph_pool_bytes"] or 0) > 0
    with torch.no_grad():
        found = running.profile_kernels(lambda: step(x))
    # All but the copy of the input into the graph's own memory.
    assert found.replayed > 0 and found.all - found.replayed <= 1


def test_kernels_outside_of_graphs_are_told_apart() -> None:
    step = compiled(lambda x: (x @ x).relu())
    x = torch.randn(64, 64, device="cuda")
    for _ in range(3):
        step(x)
    found = running.profile_kernels(lambda: torch.sin(step(x).clone()))
    assert 0 < found.replayed < found.all


def test_training_records_forward_and_backward() -> None:
    model = torch.nn.Linear(32, 32).cuda()
    step = compiled(lambda x: model(x).pow(2).mean())
    x = torch.randn(8, 32, device="cuda")

    def program() -> None:
        for _ in range(6):
            step(x).backward()
            model.zero_grad(set_to_none=True)

    seen = Seen(program)
    assert seen.codes == []
    assert seen.counts["cudagraph_recordings"] == 2
    assert (seen.counts["cudagraph_replays"] or 0) >= 6


def test_a_changed_input_is_not_captured() -> None:
    def accumulate(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    step = compiled(accumulate)
    x, cache = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")

    seen = repeated(step, x, cache, times=6)
    assert (seen.only.code, seen.only.severity) == ("CG311", "high")
    assert source(seen.only) == "cache.add_(x)"
    assert seen.counts["cudagraph_skips"] == 1
    assert seen.counts["cudagraph_recordings"] == 0
    assert any("6 of 6 runs" in line for line in seen.only.evidence)


def test_a_buffer_may_be_changed() -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache.add_(x)
            return self.cache * 2

    step = compiled(Cache().cuda())
    x = torch.ones(8, device="cuda")

    seen = repeated(step, x, times=5)
    assert seen.codes == []
    assert (seen.counts["cudagraph_replays"] or 0) >= 2


def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = x @ x
    return y * scale.to(x.device)


def with_cpu_tensor(scale: torch.Tensor) -> Seen:
    step = compiled(scaled)
    x = torch.randn(32, 32, device="cuda")

    return repeated(step, x, scale, times=4)


def test_a_cpu_tensor_cuts_the_graph() -> None:
    seen = with_cpu_tensor(torch.ones(32))
    assert (seen.only.code, seen.only.severity) == ("CG318", "low")
    assert source(seen.only) == "return y * scale.to(x.device)"
    assert "device" in seen.only.fix
    assert (seen.counts["cudagraph_replays"] or 0) > 0


def test_a_cpu_tensor_keeps_a_graph_out_that_may_not_be_cut() -> None:
    with torch._inductor.config.patch(graph_partition=False):
        seen = with_cpu_tensor(torch.ones(32))
    assert (seen.only.code, seen.only.severity) == ("CG312", "high")
    assert source(seen.only) == "return y * scale.to(x.device)"
    assert seen.counts["cudagraph_skips"] == 1


def test_a_tensor_on_the_gpu_does_neither() -> None:
    assert with_cpu_tensor(torch.ones(32, device="cuda")).codes == []


def test_control_flow_keeps_the_graph_out() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    step = compiled(branch)
    x = torch.randn(32, device="cuda")

    skip = repeated(step, x, times=3).only
    assert (skip.code, skip.severity) == ("CG314", "high")
    assert "torch.cond" in skip.message
    assert source(skip).startswith("return torch.cond(")


def sizes(count: int, times: int) -> Seen:
    step = compiled(lambda x: (x @ x.t()).relu().sum(1), dynamic=True)
    inputs = [torch.ones(64 + 8 * n, 32, device="cuda") for n in range(count)]

    def program() -> None:
        with torch.no_grad():
            for _ in range(times):
                for x in inputs:
                    step(x)

    return Seen(program)


def test_a_graph_for_each_size_is_a_storm() -> None:
    seen = sizes(count=12, times=3)
    assert (seen.only.code, seen.only.count) == ("CG321", 12)
    assert seen.only.severity == "high"
    assert "dynamic=True" in source(seen.only)
    assert "64x32" in seen.only.evidence[0]
    assert seen.counts["cudagraph_recordings"] == 12


def test_two_sizes_are_as_it_should_be() -> None:
    assert sizes(count=2, times=4).codes == []


def test_three_sizes_settle() -> None:
    seen = sizes(count=3, times=5)
    assert (seen.only.code, seen.only.severity) == ("CG321", "low")
    assert seen.counts["cudagraph_recordings"] == 3
    assert seen.counts["cudagraph_replays"] == 9


@pytest.mark.parametrize(("times", "severities"), [(5, ["high"]), (1, ["low"])])
def test_weights_that_are_replaced_are_named(times: int, severities: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16)).cuda()
    step = compiled(model)
    x = torch.randn(4, 16, device="cuda")

    def program() -> None:
        kept = []
        with torch.no_grad():
            for _ in range(3):
                step(x)
            for _ in range(times):
                kept.append(model[0].weight)
                model[0].weight = torch.nn.Parameter(model[0].weight.clone())
                step(x)
            for _ in range(2 if times == 1 else 0):
                step(x)

    seen = Seen(program)
    assert [f.severity for f in seen.findings] == severities
    assert seen.only.code == "CG322"
    assert "0.weight" in seen.only.message


def test_outputs_that_wait_for_a_backward_keep_graphs_in_warm_up() -> None:
    model = torch.nn.Linear(16, 16).cuda()
    step = compiled(model)
    x = torch.randn(4, 16, device="cuda")

    def program() -> None:
        kept = [step(x) for _ in range(6)]
        del kept

    seen = Seen(program)
    assert "CG316" in seen.codes
    assert source(seen.findings[0]) == "kept = [step(x) for _ in range(6)]"


def test_a_wait_inside_a_compiled_call_is_named() -> None:
    history: list[float] = []

    @torch.compiler.disable
    def log(x: torch.Tensor) -> None:
        history.append(x.sum().item())

    def logged(x: torch.Tensor) -> torch.Tensor:
        y = (x @ x).relu()
        log(y)
        return y * 2

    x = torch.randn(32, 32, device="cuda")

    def program() -> None:
        step = compiled(logged)
        with torch.no_grad():
            for _ in range(6):
                step(x)

    seen = Seen(program)
    assert [(f.code, source(f)) for f in seen.findings] == [
        ("HS901", "history.append(x.sum().item())")
    ]


def test_a_wait_after_each_call_is_low() -> None:
    x = torch.randn(32, 32, device="cuda")

    def program() -> None:
        step = compiled(lambda x: (x @ x).relu())
        with torch.no_grad():
            for _ in range(6):
                step(x).sum().item()

    found = Seen(program).only
    assert (found.code, found.severity) == ("HS903", "low")
    assert source(found) == "step(x).sum().item()"


def test_hooks_are_gone_afterwards() -> None:
    mode = torch.cuda.get_sync_debug_mode()
    wait = torch.cuda.synchronize
    with contextlib.ExitStack() as watchers:
        for watcher in (Recordings, Syncs):
            watchers.enter_context(watcher(lambda kind, **values: None))
        assert torch.cuda.synchronize is not wait
        torch.compile(torch.sin, backend="eager")(torch.ones(2, device="cuda"))
        assert torch.cuda.get_sync_debug_mode() != mode
    assert torch.cuda.get_sync_debug_mode() == mode
    assert torch.cuda.synchronize is wait
