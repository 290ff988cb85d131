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
from torchproof.process import Followed
from torchproof.records.events import Observation
from torchproof.records.run import Finding

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's, about what is watched here
]


Program = Callable[[], object]


class Seen:
    """What the watchers wrote while a program ran."""

    def __init__(self, program: Program) -> None:
        self.entries: list[dict[str, Any]] = []
        torch._dynamo.reset()
        with Recordings(self._write), Syncs(self._write):
            program()
        events = tuple(audit_events.events(Followed(self.entries)))
        found = rules.check(Observation(events, {}))
        self.findings = [f for f in found if f.code.startswith(("CG", "HS"))]
        self.counts = audit_events.counts(Followed(self.entries))

    def _write(self, kind: str, **values: Any) -> None:
        self.entries.append({"kind": kind, **values})

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings]


@pytest.fixture(autouse=True)
def no_graphs_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    torch.cuda.synchronize()


def compiled(fn: Any, **more: Any) -> Any:
    return torch.compile(fn, mode="reduce-overhead", **more)


def repeated(step: Any, *args: Any, times: int) -> Program:
    """So many calls without gradients."""

    def program() -> None:
        with torch.no_grad():
            for _ in range(times):
                step(*args)

    return program


def source(finding: Finding) -> str:
    return (finding.source or "").strip()


# -- programs, their findings and counts -----------------------------------------------


def clean() -> Program:
    step = compiled(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    )
    return repeated(step, torch.randn(8, 64, device="cuda"), times=6)


def trained() -> Program:
    model = torch.nn.Linear(32, 32).cuda()
    step = compiled(lambda x: model(x).pow(2).mean())
    x = torch.randn(8, 32, device="cuda")

    def program() -> None:
        for _ in range(6):
            step(x).backward()
            model.zero_grad(set_to_none=True)

    return program


def changes_its_input() -> Program:
    def accumulate(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2

    x, cache = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    return repeated(compiled(accumulate), x, cache, times=6)


class Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(x)
        return self.cache * 2


def changes_a_buffer() -> Program:
    return repeated(compiled(Cache().cuda()), torch.ones(8, device="cuda"), times=5)


def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = x @ x
    return y * scale.to(x.device)


def scaled_from(device: str) -> Program:
    x, scale = torch.randn(32, 32, device="cuda"), torch.ones(32, device=device)
    return repeated(compiled(scaled), x, scale, times=4)


def branches() -> Program:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    return repeated(compiled(branch), torch.randn(32, device="cuda"), times=3)


def sizes(count: int, times: int) -> Program:
    step = compiled(lambda x: (x @ x.t()).relu().sum(1), dynamic=True)
    inputs = [torch.ones(64 + 8 * n, 32, device="cuda") for n in range(count)]

    def program() -> None:
        with torch.no_grad():
            for x in inputs * times:
                step(x)

    return program


def replaces_a_weight(times: int) -> Program:
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

    return program


def waits_inside() -> Program:
    history: list[float] = []

    @torch.compiler.disable
    def log(x: torch.Tensor) -> None:
        history.append(x.sum().item())

    def logged(x: torch.Tensor) -> torch.Tensor:
        y = (x @ x).relu()
        log(y)
        return y * 2

    x = torch.randn(32, 32, device="cuda")
    return lambda: repeated(compiled(logged), x, times=6)()  # compiled while watched


def waits_afterwards() -> Program:
    x = torch.randn(32, 32, device="cuda")

    def program() -> None:
        step = compiled(lambda x: (x @ x).relu())
        with torch.no_grad():
            for _ in range(6):
                step(x).sum().item()

    return program


# The code, severity and line of the only finding, if there is one; and some counts.
CASES: dict[str, tuple[Callable[[], Program], tuple[str, ...], dict[str, int]]] = {
    "clean": (clean, (), {"skips": 0, "recordings": 1, "replays": 4}),
    "training": (trained, (), {"skips": 0, "recordings": 2}),
    "changed input": (
        changes_its_input,
        ("CG311", "high", "cache.add_(x)"),
        {"skips": 1, "recordings": 0},
    ),
    "changed buffer": (changes_a_buffer, (), {"skips": 0}),
    "CPU tensor": (
        lambda: scaled_from("cpu"),
        ("CG318", "low", "return y * scale.to(x.device)"),
        {},
    ),
    "tensor on the GPU": (lambda: scaled_from("cuda"), (), {}),
    "control flow": (branches, ("CG314", "high", "return torch.cond("), {}),
    "twelve sizes": (
        lambda: sizes(12, 3),
        ("CG321", "high", "dynamic=True"),
        {"recordings": 12},
    ),
    "three sizes": (
        lambda: sizes(3, 5),
        ("CG321", "low", "dynamic=True"),
        {"recordings": 3, "replays": 9},
    ),
    "two sizes": (lambda: sizes(2, 4), (), {}),
    "weight replaced often": (lambda: replaces_a_weight(5), ("CG322", "high", ""), {}),
    "weight replaced once": (lambda: replaces_a_weight(1), ("CG322", "low", ""), {}),
    "wait inside": (
        waits_inside,
        ("HS901", "medium", "history.append(x.sum().item())"),
        {},
    ),
    "wait afterwards": (
        waits_afterwards,
        ("HS903", "low", "step(x).sum().item()"),
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_findings_and_counts(name: str) -> None:
    make, expected, counts = CASES[name]
    seen = Seen(make())
    assert [(f.code, f.severity) for f in seen.findings] == [expected[:2]] * bool(
        expected
    )
    assert all(expected[2] in source(f) for f in seen.findings)
    for key, count in counts.items():
        assert seen.counts[f"cudagraph_{key}"] == count, key


def test_a_cpu_tensor_keeps_a_graph_out_that_may_not_be_cut() -> None:
    with torch._inductor.config.patch(graph_partition=False):
        seen = Seen(scaled_from("cpu"))
    [found] = seen.findings
    assert (found.code, found.severity) == ("CG312", "high")
    assert seen.counts["cudagraph_skips"] == 1


def test_kernels_outside_of_graphs_are_counted_apart() -> None:
    step = compiled(lambda x: (x @ x).relu())
    x = torch.randn(64, 64, device="cuda")
    for _ in range(3):
        step(x)
    found = running.profile_kernels(lambda: torch.sin(step(x).clone()))
    assert 0 < found.replayed < found.all


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
