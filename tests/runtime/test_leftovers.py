"""What a failed compilation leaves behind, and what `status` says about breaks."""

from __future__ import annotations

import dataclasses
import logging
import signal
import subprocess
import threading

import psutil
import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime import compile_job
from torchproof.runtime.status_report import Latency, Status, Stuck, cost


class Untraceable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
        return x + 1


def compile_children() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "torchproof.runtime.child" in each.cmdline()]


def test_no_process_remains_after_a_compilation_that_failed(
    fresh_compiler: None,
) -> None:
    compile_job.shared_worker().close()
    model = torchproof.compile(Untraceable())
    x = torch.zeros(2)
    assert torch.equal(model(x), x + 1)
    status = torchproof.status(model)
    assert status.fallbacks and not status.compilations, status
    assert not compile_children()


def test_a_compiler_that_starts_after_the_deadline_is_killed() -> None:
    """Inductor's threads go on when the thread that waits for them is stopped."""
    from torch._inductor.async_compile import AsyncCompile

    pool = AsyncCompile.pool()
    has_begun, may_start = threading.Event(), threading.Event()

    def compile_late() -> int:
        has_begun.set()
        assert may_start.wait(60)
        return subprocess.run(["sleep", "1000"], check=False).returncode

    late = pool.submit(compile_late)
    assert has_begun.wait(60)
    compile_job.Job(until=0.0).abandon_pool()
    may_start.set()
    assert late.result(timeout=60) == -signal.SIGKILL
    assert AsyncCompile.pool() is not pool
    assert AsyncCompile.pool().submit(int, "7").result(timeout=60) == 7


class Breaking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2


def test_status_counts_graphs_and_breaks(fresh_compiler: None) -> None:
    model = torchproof.compile(Breaking(), backend="eager")
    model(torch.zeros(2))
    status = torchproof.status(model)
    assert (status.graphs, status.graph_breaks) == (2, 1), status
    assert status.to_json()["graph_breaks"] == 1
    assert "2 graphs, 1 graph break" in str(status)
    clean = torchproof.compile(nn.Linear(2, 2), backend="eager")
    clean(torch.zeros(2))
    assert torchproof.status(clean).graph_breaks == 0


class BreakingBelow(nn.Module):
    """One break, in a method that `forward` calls: Dynamo breaks both graphs."""

    def halved(self, x: Tensor) -> Tensor:
        x = x / 2
        torch._dynamo.graph_break()
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.halved(x.sin()) * 3


class BreakingFirst(nn.Module):
    """Two breaks, one of them before any operation, where there is no graph."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1


@pytest.mark.parametrize(("kind", "breaks"), [(BreakingBelow, 1), (BreakingFirst, 2)])
def test_each_place_of_a_break_counts_once(
    kind: type[nn.Module], breaks: int, fresh_compiler: None
) -> None:
    model = torchproof.compile(kind(), backend="eager")
    for rows in (2, 3):
        model(torch.zeros(rows, 2))
    assert torchproof.status(model).graph_breaks == breaks


def test_what_compiling_costs_is_said_only_as_far_as_it_was_measured() -> None:
    status = Status("Net", "full", "", deadline_s=600, calls=6, compile_s=107.0)
    assert "unknown" in (cost(status) or "")
    quick = dataclasses.replace(status, compile_s=1.0)
    assert cost(quick) is None

    def timed(eager_ms: float, compiled_ms: float) -> str:
        times = {"eager": eager_ms, "compiled": compiled_ms}
        latency = {name: Latency(6, ms, ms, ms) for name, ms in times.items()}
        return cost(dataclasses.replace(status, latency=latency)) or ""

    assert "after 107,000 calls" in timed(2.0, 1.0)
    assert "does not pay off" in timed(1.0, 2.0)


@pytest.mark.parametrize(
    ("eager_ms", "compiled_ms", "words"),
    [
        (None, None, "unknown"),
        (2.0, 1.0, "after 40,000 calls"),
        (1.0, 2.0, "does not pay off"),
        (100.0, 1.0, None),  # after 405 calls
    ],
)
def test_long_compiling_is_one_line_in_the_log_unless_it_pays_off(
    eager_ms: float | None,
    compiled_ms: float | None,
    words: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = torchproof.compile(nn.Linear(2, 2), backend="eager")
    forward = model.forward
    if eager_ms is not None:
        times = {"eager_ms": eager_ms, "compiled_ms": compiled_ms}
        forward.worth = times | {"summary": ""}
    with caplog.at_level(logging.INFO, "torchproof"):
        for seconds in (20.0, 20.0, 5.0):
            forward.telemetry.add_compile_time(seconds)
        forward.telemetry.deliver()
    lines = [r for r in caplog.records if r.name == "torchproof"]
    assert [line.levelno for line in lines] == [logging.WARNING] * (words is not None)
    for line in lines:
        assert "40.0 s compiling for 0 calls" in line.getMessage()
        assert words is not None and words in line.getMessage()


def test_status_says_where_and_since_when_a_thread_is_stuck() -> None:
    stuck = Stuck("torchproof-forward", "poll (a.py:3)", "tracing", "10:00:00")
    text = str(Status("Net", "full", "", deadline_s=5, stuck=(stuck,)))
    assert "poll (a.py:3) (tracing) since 10:00:00" in text
