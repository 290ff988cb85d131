"""What a measurement counts: graph breaks by place and cause, from each reset on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchproof.measure.compile_stats import CompileStats


@pytest.fixture
def stats() -> Iterator[CompileStats]:
    torch._dynamo.reset()
    stats = CompileStats()
    stats.open(inductor=False)
    stats.reset()
    with stats._hooks:
        yield stats
    torch._dynamo.reset()


def breaks(stats: CompileStats) -> int | None:
    return (stats.since_reset().counts or {})["graph_breaks"]


def prints(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x + 1


def branches(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x


def skips(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        try:
            print(end="")
        finally:
            x = x * 2
    return x


def calls_all(x: torch.Tensor) -> torch.Tensor:
    return skips(branches(prints(x)))


def test_each_graph_break_counts_once(stats: CompileStats) -> None:
    """Torch's counter has one of the three."""
    compiled = torch.compile(calls_all, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    assert breaks(stats) == 3
    compiled(torch.ones(4))  # compiled again, for another size
    assert breaks(stats) == 3
    stats.reset()
    compiled(torch.ones(4))
    assert breaks(stats) == 0


def test_one_graph_has_no_break(stats: CompileStats) -> None:
    compiled = torch.compile(lambda x: x.relu() * 2, backend="eager")
    compiled(torch.ones(3))
    assert breaks(stats) == 0 and (stats.since_reset().counts or {})["graphs"] == 1
